"""The benchmark of faults: what its verdicts and tables say, and a few cells on real processes.

The texts are those of real runs.
"""

from __future__ import annotations

import pytest

from benchmarks.faults.__main__ import measure
from benchmarks.faults.catalogue import FAULTS, TOOLS
from benchmarks.faults.cell import ROOT, Run
from benchmarks.faults.job import text_of
from benchmarks.faults.report import cell, judge, merged, names_line, names_rank, read, tidy, write

TIMED_OUT = "RuntimeError: [/__w/gloo/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
CLOSED = "RuntimeError: [/__w/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19867. This is typically"
BARRIER = "RuntimeError: [Rank 0]: Ranks 1, 12 failed to pass monitoredBarrier in 8000 ms"
DETAIL = "RuntimeError: Rank 0 is running collective: X(TensorShape=[4]), but Rank 1 is running collective: X([3])"
LINE = FAULTS["skipped"].places("torch")[0][1]  # the marked one of the program
OURS = (
    f"MismatchError: ranks disagree: rank 1 calls all_reduce\n  rank 1  benchmarks/faults/programs.py:{LINE} in skipped"
)


@pytest.mark.parametrize(
    ("text", "named", "others"),
    [
        (TIMED_OUT, [], [1, 8000]),
        (CLOSED, [], [1]),
        (BARRIER, [1, 12], [2, 8000]),
        (DETAIL, [0, 1], [3, 4]),
        (OURS, [1], [3]),
        ("ranks 0-2 and 5 have returned", [1, 5], [4]),
        ("[rank1]: KeyError", [1], []),
        ("rank 1.5 or rankings 1", [], [1]),
    ],
)
def test_a_text_names_a_rank_by_its_number(text: str, named: list[int], others: list[int]) -> None:
    assert all(names_rank(text, rank) for rank in named)
    assert not any(names_rank(text, rank) for rank in others)


def test_a_text_names_a_line_of_the_rank_at_fault_and_is_kept_without_stack_and_places() -> None:
    for text, line, named in [
        ("benchmarks/faults/programs.py:42 in skipped", 42, True),
        ("benchmarks/faults/programs.py:42 in skipped", 4, False),
        ('  File "benchmarks/faults/programs.py", line 42, in skipped', 42, True),
        ('  File "benchmarks/faults/programs.py", line 421, in skipped', 42, False),
        ("benchmarks/faults/lightning_programs.py:42 in skipped", 42, False),
        (CLOSED, 553, False),
    ]:
        assert names_line(text, [("programs.py", line)]) is named
    assert tidy(CLOSED) == "RuntimeError: Connection closed by peer. This is typically"
    assert tidy(f'File "{ROOT}/benchmarks/faults/job.py", line 42') == 'File "benchmarks/faults/job.py", line 42'
    error = ValueError("lost")
    error.__cause__ = RuntimeError("closed\nException raised from wait at pair.cc:5:\nframe #0: rank 1")
    error.add_note("see there")
    assert text_of(error) == "ValueError: lost\nsee there\n\nThe cause of it:\nRuntimeError: closed"


def value(got: object, right: object) -> dict[str, object]:
    return {"time": 10.1, "kind": "value", "name": "loss", "got": got, "right": right}


def raised(at: float, text: str) -> dict[str, object]:
    return {"time": at, "kind": "raised", "text": text}


DONE = {"time": 10.5, "kind": "done"}


def row(fault: str, *events: list[dict[str, object]], died: dict[int, tuple[float, str]] | None = None):
    seen = Run(10, list(events), died or {}, ["[rank0]: what(): [enforce fail]"] * len(events), [0, 2])
    return judge(FAULTS[fault], "torch", seen)


LOST = [raised(11, "rank 1")], [raised(10, "rank 1")], [raised(12, CLOSED)]  # what the lost rank says is not counted
ROWS = {
    ("right", "right value"): row("slow", [value([3.0], [3.0]), DONE], [DONE], [DONE]),
    ("silent", "**wrong number**, no error"): row("sum-max", [value([[3.0]], [3.0]), DONE], [DONE]),
    ("error", "error 0.2–8.0 s"): row("length", [raised(10.25, CLOSED)], [raised(18, TIMED_OUT)]),
    ("error", "error 0.0 s, names rank and line"): row("skipped", [raised(10, OURS)], [raised(10, "")]),
    ("error", "error 1.0–2.0 s, names rank (1 of 2)"): row("raises", *LOST),
    ("hang", "**hang** (> 20 s)"): row("kill-1", [], [], [], died={1: (10.1, "SIGKILL")}),
    ("hang", "1 of 2 **hang** (> 20 s); error 1.0 s"): row("kill-1", [], [], [raised(11, CLOSED)]),
    ("abort", "abort and error 0.5–1.0 s"): row("length", [], [raised(11, CLOSED)], died={0: (10.5, "SIGABRT")}),
    ("error", "**wrong number**, then error 1.0 s"): row("extra", [raised(11, CLOSED)], [value([1.0], [3.0]), DONE]),
}


def test_what_became_of_a_job_and_the_table_of_it(tmp_path) -> None:
    """What is run again replaces the old."""
    for (outcome, said), found in ROWS.items():
        assert (found.outcome, cell(found)) == (outcome, said)
    never = Run(None, [[raised(10, CLOSED)], []], {}, ["", ""], [])
    assert judge(FAULTS["length"], "torch", never).outcome == "not measured"
    assert judge(FAULTS["length"], "lightning", None).outcome == "not expressible"
    for tool in TOOLS:
        assert all(fault.places(tool) for fault in FAULTS.values() if fault.expressible(tool))
    rows = merged([], [found for found in ROWS.values() if found.fault in ("sum-max", "length", "kill-1", "slow")])
    assert [each.fault for each in rows] == ["sum-max", "length", "kill-1", "slow"]
    write(rows, {"python": "3.11"}, tmp_path)
    assert read(tmp_path) == rows
    page = (tmp_path / "faults.md").read_text()
    assert "| sum against max | **wrong number**, no error |" in page
    assert "| torch.distributed | 3 | 1 | 1 | 0 | 0 | 1 | 1 | 1 | 1 | 1 |" in page  # `slow` is no fault
    (again,) = merged([rows[0]], [row("sum-max", [raised(11, CLOSED)], [DONE])])
    assert again.outcome == "error"


@pytest.mark.long
@pytest.mark.gloo
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("tool", "fault", "outcome"),
    [
        ("torch", "sum-max", "silent"),
        ("torch-timeout", "slow", "right"),
        ("detail", "dtype-other-size", "error"),
        ("lightning", "swapped", "silent"),
        ("distmetrics", "compute-raises", "error"),
        ("distmetrics-launch", "raises", "error"),
    ],
)
def test_a_cell_on_real_processes(tool: str, fault: str, outcome: str) -> None:
    found = measure(fault, tool, limit=40.0, timeout=20.0)
    assert (found.outcome, found.wrong) == (outcome, outcome == "silent"), found
    assert outcome != "error" or found.rank_named == found.told > 0
