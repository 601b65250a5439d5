"""DL900."""

from __future__ import annotations

from collections.abc import Iterator

from distlint.analysis import Analysis
from distlint.model import Example, Report, Rule, Severity


class UnusedIgnore(Rule):
    """A comment asks to ignore what no rule reports: it would hide the next finding on that line, unread.

    Comments outlive the code that they were written for. One that hides nothing looks like a known problem to
    the reader, and silences a real one as soon as somebody adds it to the line.

    How to fix: remove the comment, or the code from its list; ``--fix`` does both.

    Silent: codes of rules that were not applied in this run (``--select``, ``--ignore``, rules that have to be asked
    for), and comments without a list of codes unless all rules were applied; a comment that names DL900 as well.

    When to ignore: the finding comes and goes with the version of a library or of the linter.
    """

    code, name, group = "DL900", "unused-ignore", "comments"
    severity = Severity.WARNING
    tokens = ((b"distlint:",),)
    bad = (
        Example(
            """\
import torch.distributed as dist

def wait():
    dist.barrier()  # distlint: ignore[DL101] the group is rank 0 alone
    print("done")  # distlint: ignore
""",
            {4: "DL101 is not reported here", 5: "no rule reports anything here"},
        ),
        Example(
            """\
# distlint: ignore-file[DL201]
import torch.distributed as dist

def wait(rank):
    if rank == 0:
        dist.barrier()  # distlint: ignore[DL101, DL005] the group is rank 0 alone
""",
            {1: "DL201", 6: "DL005"},
        ),
    )
    good = (
        """\
import torch.distributed as dist

def wait(rank):
    if rank == 0:
        dist.barrier()  # distlint: ignore[DL101] the group is rank 0 alone
""",
        """\
import torch.distributed as dist

def wait(rank):
    dist.barrier()  # distlint: ignore[DL101, DL900] not with older versions
""",
        """\
text = "# distlint: ignore[DL101]"
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Nothing by itself: the engine knows what comments have hidden, once all other rules have spoken."""
        del analysis
        yield from ()
