"""The benchmark of faults: what its verdicts and tables say, and a few cells on real processes.

The texts are those of real runs.
"""

from __future__ import annotations

import time
from dataclasses import replace

import psutil
import pytest

from benchmarks.faults.__main__ import measure, options
from benchmarks.faults.catalogue import FAULTS, TOOLS, program_of
from benchmarks.faults.cell import ROOT, Run, run
from benchmarks.faults.events import Log, read, text_of
from benchmarks.faults.report import cell, markdown, merged, write
from benchmarks.faults.report import read as read_results
from benchmarks.faults.verdict import judge, names_line, names_rank, tidy

TIMED_OUT = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
    "8000ms for recv operation to complete"
)
CLOSED = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:19867. This is typically caused by a remote worker crashing. Check the logs of the remote worker "
    "before reporting an error."
)
ABORTED = (
    "SIGABRT: terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
    "/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. "
    "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?"
)
BARRIER = "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 8000 ms"
BARRIER_OTHER = (
    "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
    "rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n" + CLOSED.removeprefix("RuntimeError: ")
)
DETAIL = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE, TensorShape=[4], TensorDtypes=Float), but Rank 1 is "
    "running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE, TensorShape=[3], "
    "TensorDtypes=Float).Collectives differ in the following aspects: \t Tensor Tensor shapes: 4vs 3"
)
OURS = (
    'distmetrics.errors.MismatchError: ranks disagree on a collective: rank 1 calls all_reduce sum "val/count", rank 0 '
    'all_reduce sum "val/loss"\n'
    '  rank 0  all_reduce sum "val/loss"   float32[4]  benchmarks/faults/programs.py:40 in skipped\n'
    '  rank 1  all_reduce sum "val/count"  float32[4]  benchmarks/faults/programs.py:42 in skipped\n'
)


@pytest.mark.parametrize(
    ("text", "rank", "named"),
    [
        (TIMED_OUT, 1, False),
        (CLOSED, 1, False),
        (ABORTED, 1, False),
        (BARRIER, 1, True),
        (BARRIER, 8000, False),
        (BARRIER_OTHER, 0, True),
        (BARRIER_OTHER, 1, False),
        (DETAIL, 1, True),
        (DETAIL, 4, False),
        (OURS, 1, True),
        (OURS, 3, False),
        ("ranks 0-2 and 5 have returned", 1, True),
        ("ranks 0-2 and 5 have returned", 5, True),
        ("ranks 0-2 and 5 have returned", 4, False),
        ("RuntimeError: Ranks 1, 12 failed to pass monitoredBarrier in 8000 ms", 12, True),
        ("RuntimeError: Ranks 1, 12 failed to pass monitoredBarrier in 8000 ms", 2, False),
        ("it was rank 1.", 1, True),
        ("[rank1]: KeyError", 1, True),
        ("rank 1.5 or rankings 1", 1, False),
    ],
)
def test_a_text_names_a_rank_by_its_number(text: str, rank: int, named: bool) -> None:
    assert names_rank(text, rank) is named


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (TIMED_OUT, "RuntimeError: Timed out waiting 8000ms for recv operation to complete"),
        (CLOSED, "RuntimeError: Connection closed by peer. This is typically"),
        (f'File "{ROOT}/benchmarks/faults/programs.py", line 42', 'File "benchmarks/faults/programs.py", line 42'),
        (BARRIER, BARRIER),
        (OURS, OURS),
    ],
)
def test_a_text_is_kept_without_what_differs_from_machine_to_machine(text: str, left: str) -> None:
    assert tidy(text).startswith(left)
    assert "what():  op.preamble.length <= op.nbytes. 8 vs 4." in tidy(ABORTED)


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        (OURS, 42, True),
        (OURS, 41, False),
        (OURS, 4, False),
        ('  File "benchmarks/faults/programs.py", line 42, in skipped', 42, True),
        ('  File "benchmarks/faults/programs.py", line 421, in skipped', 42, False),
        ("benchmarks/faults/lightning_programs.py:42 in skipped", 42, False),
        (CLOSED, 553, False),
    ],
)
def test_a_text_names_a_line_of_the_rank_at_fault(text: str, line: int, named: bool) -> None:
    assert names_line(text, [("programs.py", line)]) is named


def value(name: str, got: object, right: object) -> dict[str, object]:
    return {"time": 10.1, "kind": "value", "name": name, "got": got, "right": right}


def raised(at: float, text: str) -> dict[str, object]:
    return {"time": at, "kind": "raised", "text": text}


DONE = {"time": 10.5, "kind": "done"}


def row(fault: str, *events: list[dict[str, object]], died: dict[int, tuple[float, str]] | None = None, at: float = 10):
    seen = Run(at, list(events), died or {}, ["[rank0]: what(): [enforce fail]"] * len(events), [0, 2])
    return judge(FAULTS[fault], "torch", seen, [("programs.py", 42)], 20.0, 8.0)


@pytest.mark.parametrize(
    ("found", "outcome", "said"),
    [
        (row("slow", [value("loss", [3.0], [3.0]), DONE], [DONE], [DONE]), "right", "right value"),
        (row("sum-max", [value("loss", [2.0], [3.0]), DONE], [DONE]), "silent", "**wrong number**, no error"),
        (row("sum-max", [value("loss", [[3.0]], [3.0]), DONE], [DONE]), "silent", "**wrong number**, no error"),
        (row("length", [raised(10.25, CLOSED)], [raised(18, TIMED_OUT)]), "error", "error 0.2–8.0 s"),
        (row("length", [raised(10.1, DETAIL)], [raised(10.1, DETAIL)]), "error", "error 0.1 s, names rank"),
        (row("skipped", [raised(10, OURS)], [raised(10, "")]), "error", "error 0.0 s, names rank and line"),
        (
            row("raises", [raised(11, BARRIER)], [raised(10, "")], [raised(12, BARRIER_OTHER)]),
            "error",
            "error 1.0–2.0 s, names rank (1 of 2)",
        ),
        (row("kill-1", [], [], []), "hang", "**hang** (> 20 s)"),
        (row("kill-1", [], [], [raised(11, CLOSED)]), "hang", "1 of 2 **hang** (> 20 s); error 1.0 s"),
        (row("length", [], [raised(11, CLOSED)], died={0: (10.5, "SIGABRT")}), "abort", "abort and error 0.5–1.0 s"),
        (
            row("skipped", [raised(11, CLOSED)], [value("count", [1.0], [3.0]), DONE]),
            "error",
            "**wrong number**, then error 1.0 s",
        ),
    ],
)
def test_what_became_of_a_job(found, outcome: str, said: str) -> None:
    assert (found.outcome, cell(found)) == (outcome, said)


def test_a_job_that_did_not_come_to_its_fault_is_not_measured() -> None:
    seen = Run(None, [[raised(10, CLOSED)], []], {}, ["", ""], [])
    assert judge(FAULTS["length"], "torch", seen, [], 20.0, 8.0).outcome == "not measured"
    assert judge(FAULTS["length"], "lightning", None, [], 20.0, 8.0).outcome == "not expressible"


def test_the_lost_rank_is_no_survivor_and_its_own_words_name_nothing() -> None:
    found = row("raises", [raised(11, CLOSED)], [raised(10, "rank 1")], [raised(12, CLOSED)])
    assert (found.seconds, found.rank_named, found.told) == ([1.0, 2.0], 0, 2)
    killed = row("kill-1", [raised(11, CLOSED)], [], [raised(12, CLOSED)], died={1: (10.1, "SIGKILL")})
    assert (killed.outcome, killed.ends[1].how) == ("error", "lost")


def test_every_program_has_a_line_of_the_rank_at_fault() -> None:
    for fault in FAULTS.values():
        for tool in TOOLS.values():
            if fault.expressible(tool):
                assert fault.places(tool), (fault.name, tool.name)
    for tool in ("torch", "lightning"):
        module = program_of(TOOLS[tool])
        assert set(module.__all__) == {fault.program for fault in FAULTS.values() if fault.expressible(TOOLS[tool])}, (
            "a program without a fault"
        )


def test_new_rows_take_the_place_of_old_ones_and_come_back_from_the_file(tmp_path) -> None:
    old = [row("kill-1", [], [], []), row("length", [raised(11, CLOSED)], [raised(18, TIMED_OUT)])]
    new = [row("kill-1", [raised(11, CLOSED)], [], [raised(12, CLOSED)])]
    rows = merged(old, new)
    assert rows == [old[1], new[0]]
    write(rows, {"torch": {"Python": "3.11"}}, tmp_path)
    kept, facts = read_results(tmp_path)
    assert [cell(one) for one in kept] == [cell(one) for one in rows]
    assert kept[0].counted == rows[0].counted
    assert (tmp_path / "faults.md").read_text() == markdown(kept, facts)


def test_the_table_says_what_was_seen() -> None:
    page = markdown(
        [
            row("sum-max", [value("loss", [2.0], [3.0]), DONE], [DONE]),
            row("length", [raised(10.1, DETAIL)], [raised(10.1, DETAIL)]),
            row("kill-1", [], [], [raised(18, CLOSED)]),
            row("slow", [raised(11, CLOSED)], [DONE], [DONE]),
        ],
        {"torch": {"Python": "3.11"}},
    )
    assert "| sum against max | **wrong number**, no error |" in page
    assert "| SIGKILL of rank 1 | 1 of 2 **hang** (> 20 s); error 8.0 s |" in page
    assert "| torch.distributed | 3 | 1 | 1 | 1 | 0 | 1 | 1 | 1 | 0 | 1 |" in page  # ranks 0 and 2
    assert (
        "| length | torch.distributed | 0.10 s | 0.10 s | 1 of 1 | 0 of 1 | no | 0 of 2 | no | ranks 0, 2 | Run" in page
    )
    assert markdown([replace(row("length", [], []), reported=None)], {}).count("| – |") >= 1


def test_what_a_rank_tells_is_read_while_it_writes(tmp_path) -> None:
    log = Log(tmp_path, 1)
    assert read(tmp_path, 1) == []
    log.write("value", got=[1.0])
    with log.path.open("a") as file:
        file.write('{"kind": "do')
    assert [event["got"] for event in read(tmp_path, 1)] == [[1.0]]


def test_the_text_of_an_error_has_its_notes_and_causes_but_no_stack() -> None:
    cause = RuntimeError("closed\nException raised from wait at pair.cc:5 (most recent call first):\nframe #0: rank 1")
    error = ValueError("lost")
    error.add_note("see there")
    error.__cause__ = cause
    assert text_of(error) == "ValueError: lost\nsee there\n\nThe cause of it:\nRuntimeError: closed"


def test_a_time_out_beyond_the_limit_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        options(["--timeout", "30"])
    assert "shorter than the limit" in capsys.readouterr().err


def gone(pid: int) -> bool:
    """Whether a process has ended, or is about to be reaped by whoever adopted it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.long
@pytest.mark.gloo
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("tool", "fault"), [("torch", "stop-1"), ("distmetrics-launch", "stuck")])
def test_no_process_is_left_behind(tool: str, fault: str) -> None:
    seen = run(FAULTS[fault], TOOLS[tool], limit=1.0, timeout=60.0)
    assert seen is not None
    assert seen.fault_at is not None
    pids = [event["pid"] for events in seen.events for event in events if event["kind"] == "start"]
    assert len(pids) == 3
    assert all(gone(pid) for pid in pids)
    if tool == "torch":
        assert judge(FAULTS[fault], tool, seen, [], 1.0, 60.0).outcome == "hang"


@pytest.mark.long
@pytest.mark.gloo
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("tool", "fault", "outcome"),
    [
        ("torch", "sum-max", "silent"),
        ("torch-timeout", "slow", "right"),
        ("detail", "dtype-other-size", "error"),
        ("monitored", "os-exits", "error"),
        ("lightning", "swapped", "silent"),
        ("distmetrics", "skipped", "error"),
        ("distmetrics-launch", "raises", "error"),
    ],
)
def test_a_cell_on_real_processes(tool: str, fault: str, outcome: str) -> None:
    found = measure(FAULTS[fault], TOOLS[tool], limit=40.0, timeout=20.0)
    assert found.outcome == outcome, found
    assert found.wrong is (outcome == "silent")
    if outcome == "error" and fault != "os-exits":
        assert found.rank_named == found.told > 0
