"""What became of a job, judged from what its ranks told: pure functions, without a process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.faults.catalogue import Fault
from benchmarks.faults.cell import ROOT, Run
from benchmarks.faults.events import Event

__all__ = ["End", "Row", "judge", "names_line", "names_rank", "tidy"]

# One rank or several: as in "Ranks 1, 2", as in "ranks 0-1 and 3", as in "[rank1]"
_RANKS = re.compile(
    r"\branks?[ :=]{0,2}(\d+(?:(?:, | ?and |-| - |–)\d+)*)(?!\d|\.\d)", re.IGNORECASE
)
_PART = re.compile(r"(\d+)(?:(?:-| - |–)(\d+))?")
# Where something lies on this machine, gloo's own source line, and a peer's port: other ones each
# time.
_PLACE = re.compile(
    rf"{re.escape(str(ROOT))}/|\[(?:enforce fail at )?/[^\]]*\] ?| ?\[[\d.:]+\]:\d+"
)
_WORDS = 600  # characters of what an aborted process wrote


@dataclass(frozen=True)
class End:
    """How one rank ended.

    Attributes:
        how: "error", "abort", "hang" or "done"; "lost" for the rank that the fault took away.
        seconds: from the fault to the end.
        text: of the error, or the end of what an aborted process wrote.
        wrong: names of the values that were not what they should have been.
    """

    how: str
    seconds: float | None = None
    text: str = ""
    wrong: Sequence[str] = ()


@dataclass(frozen=True)
class Row:
    """One fault with one tool.

    Attributes:
        fault: its name.
        tool: its name.
        outcome: "right", "silent", "error", "abort", "hang", "not expressible" or "not measured".
        ends: of each rank.
        survivors: the ranks that count.
        rank_named: how many of the ranks that did nothing wrong and ended with an error name the
            one that did.
        line_named: how many name its line.
        told: how many ended with an error, of those that did nothing wrong.
        reported: the ranks that left a report; None in rows of earlier runs, which did not look.
        dumped: True if a dump of stacks has the line of the rank at fault.
    """

    fault: str
    tool: str
    outcome: str
    limit: float
    timeout: float
    ends: Sequence[End] = field(default_factory=list)
    survivors: Sequence[int] = ()
    rank_named: int = 0
    line_named: int = 0
    told: int = 0
    reported: Sequence[int] | None = None
    dumped: bool = False

    @property
    def counted(self) -> list[End]:
        """The ends of the survivors."""
        return [self.ends[rank] for rank in self.survivors] if self.ends else []

    @property
    def seconds(self) -> list[float]:
        """When survivors ended with an error or an abort, in order."""
        return sorted(
            end.seconds
            for end in self.counted
            if end.seconds is not None and end.how in ("error", "abort")
        )

    @property
    def wrong(self) -> bool:
        """Whether a program was given a wrong number."""
        return any(end.wrong for end in self.ends)


def names_rank(text: str, rank: int) -> bool:
    """Whether a text speaks of a rank by its number.

    >>> names_rank("[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 8000 ms", 3)
    True
    >>> names_rank("Timed out waiting 8000ms for recv operation to complete", 1)
    False
    """
    for found in _RANKS.finditer(text):
        for first, last in _PART.findall(found[1]):
            if int(first) <= rank <= int(last or first):
                return True
    return False


def names_line(text: str, places: Iterable[tuple[str, int]]) -> bool:
    """Whether a text has one of some places, as ``file.py:12`` or as tracebacks say it.

    >>> names_line("rank 1 is at  faults/programs.py:42 in skipped", [("programs.py", 42)])
    True
    """
    return any(
        re.search(rf'\b{re.escape(file)}(?::|", line |:? line ){line}(?!\d)', text) is not None
        for file, line in places
    )


def tidy(text: str) -> str:
    """Take out of a text what differs from one machine, or from one run, to the next.

    >>> tidy("[/src/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:19867.")
    'Connection closed by peer.'
    """
    return _PLACE.sub("", text)


def judge(
    fault: Fault,
    tool: str,
    run: Run | None,
    places: Sequence[tuple[str, int]],
    limit: float,
    timeout: float,
) -> Row:
    """Say what became of a job; ``run`` is None where the fault cannot be expressed."""
    if run is None:
        return Row(fault.name, tool, "not expressible", limit, timeout)
    ends = [_end(fault, run, rank) for rank in range(fault.ranks)]
    if run.fault_at is None:
        return Row(fault.name, tool, "not measured", limit, timeout, ends)
    texts = [ends[rank].text for rank in fault.others if ends[rank].how in ("error", "abort")]
    return Row(
        fault.name,
        tool,
        _outcome([ends[rank] for rank in fault.survivors]),
        limit,
        timeout,
        ends,
        fault.survivors,
        sum(names_rank(text, fault.wrong) for text in texts),
        sum(names_line(text, places) for text in texts),
        len(texts),
        run.reported,
        names_line(run.dump, places),
    )


def _outcome(ends: Sequence[End]) -> str:
    for how in ("hang", "abort", "error"):  # the worst of the survivors' ends
        if any(end.how == how for end in ends):
            return how
    return "silent" if any(end.wrong for end in ends) else "right"


def _end(fault: Fault, run: Run, rank: int) -> End:
    events = run.events[rank]
    wrong = [event["name"] for event in events if event["kind"] == "value" and not _equal(event)]
    since = run.fault_at or 0.0
    for event in events:
        if event["kind"] == "raised":
            return End("error", event["time"] - since, tidy(event["text"]), wrong)
        if event["kind"] == "done":
            return End("done", event["time"] - since, "", wrong)
    if rank not in fault.survivors:
        return End("lost", wrong=wrong)
    if rank in run.died:
        at, how = run.died[rank]
        written = run.stderr[
            min(rank, len(run.stderr) - 1)
        ].strip()  # of a launcher, if that has started the ranks
        return End("abort", at - since, f"{how}: {tidy(written[-_WORDS:])}", wrong)
    return End("hang", wrong=wrong)


def _equal(event: Event) -> bool:
    """Whether a value is the right one, shape and all; all of them are whole numbers, or halves."""
    return bool(event["got"] == event["right"])
