"""Faults on real processes: each ends in an error that names rank and line, and what is right goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distmetrics import DivergedError, MismatchError, PeerLostError
from distmetrics.guard import use_settings
from distmetrics.testing import Outcome, outcomes, run
from tests.backends import same_error
from tests.guard import ranks

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]


def ended(fn: object, *args: object, world_size: int = 2) -> list[Outcome]:
    return outcomes(world_size, fn, *args, backend="gloo", limit=60)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["nothing", "slow"])
def test_what_is_right_goes_on(what: str) -> None:
    """A rank that takes its time is no fault."""
    assert run(2, ranks.fault, what, 1, backend="gloo") == [[3.0] * 3] * 2


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("raise", "raised ValueError: a bad batch  tests/guard/ranks.py"),
        ("exit", "exit code 3"),
        ("kill", "was killed by SIGKILL"),
    ],
)
def test_a_rank_that_ends_is_named(what: str, why: str, bad: int) -> None:
    """Whichever rank it is, and however it ends."""
    error = ended(ranks.fault, what, bad)[1 - bad].error
    assert isinstance(error, PeerLostError), error
    assert error.peers == (bad,)
    assert str(error).startswith(f"rank {bad} failed and will never answer\n")
    assert why in str(error)
    assert 'waits in all_reduce sum "sum 1" float32[3]  tests/guard/ranks.py' in str(error)


def test_a_rank_that_is_stopped_is_named() -> None:
    """SIGSTOP: its process lives, and does nothing any more."""
    error = ended(ranks.fault, "stop", 1)[0].error
    assert isinstance(error, PeerLostError), error
    assert str(error).startswith("rank 1 is stopped by a signal (SIGSTOP), and others wait for it\n")


def test_a_rank_that_is_busy_elsewhere_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the user's deadline, and no earlier."""
    monkeypatch.setenv("DISTMETRICS_TIMEOUT", "1.5")
    error = ended(ranks.fault, "busy", 1)[0].error
    assert isinstance(error, DivergedError), error
    assert str(error).startswith("rank 1 did not come to a collective within 1.5 s\n")
    assert "  rank 1  is at tests/guard/ranks.py:" in str(error)


def test_a_call_that_only_one_rank_makes() -> None:
    """It meets the others' next call, whose name is another; no data moves."""
    error = same_error(ended(ranks.fault, "extra", 1), MismatchError)
    assert 'rank 1 calls barrier "which only one rank calls", rank 0 all_reduce sum "sum 1"' in str(error)


def test_a_collective_of_torchs_own_on_one_rank() -> None:
    """It does not pass through us; where it is can be told all the same."""
    error = ended(ranks.fault, "foreign", 1)[0].error
    assert isinstance(error, DivergedError), error
    assert "rank 1  is in torch.distributed.all_reduce  tests/guard/ranks.py:" in str(error)


def test_a_direct_call_meets_another() -> None:
    """Two operations in the same place of a group's calls, one of them the others' header: it can't be read."""
    for outcome in ended(ranks.fault, "direct", 1):
        assert isinstance(outcome.error, MismatchError | PeerLostError | DivergedError), outcome.error


def test_groups_in_another_order() -> None:
    """A deadlock: the same words on both ranks, with the lines."""
    error = same_error(ended(ranks.groups_in_another_order), DivergedError)
    assert str(error).startswith("deadlock: ranks 0-1 wait for each other in different calls\n")
    assert "ranks 0-1  wait in barrier  tests/guard/ranks.py" in str(error)
    assert "(group of ranks 0-1)" in str(error)


def test_threads_with_groups_of_their_own_are_no_deadlock() -> None:
    """What one thread of a rank waits for says nothing of the other."""
    assert run(2, ranks.groups_in_threads, backend="gloo") == [[2.0, 2.0]] * 2


def test_lines_in_another_order() -> None:
    """Each pair of calls agrees, and the numbers are wrong: found by the lines."""
    error = same_error(ended(ranks.lines_in_another_order), MismatchError)
    assert str(error).startswith("ranks made the same calls in another order\n")
    assert str(error).count("tests/guard/ranks.py:") == 4


def test_lines_of_a_branch_are_no_fault() -> None:
    """Unless the user wants it so."""
    assert run(2, ranks.lines_of_a_branch, backend="gloo") == [10.0, 10.0]


def test_the_strict_guard_refuses_other_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says so before data moves."""
    monkeypatch.setenv("DISTMETRICS_GUARD", "strict")
    error = same_error(ended(ranks.lines_of_a_branch), MismatchError)
    assert "from different lines, which the strict guard refuses" in str(error)


def test_direct_calls_that_differ_come_to_light_in_the_next_call() -> None:
    """The transport adds the bytes of floats to those of integers without a word."""
    error = same_error(ended(ranks.direct_calls_that_differ), MismatchError)
    assert "rank 0  all_reduce sum int32[4]  tests/guard/ranks.py" in str(error)
    assert "What those calls returned may be wrong on every rank." in str(error)


def test_every_later_call_raises_the_same() -> None:
    """After a desync the next collective would return garbage."""
    said = ended(ranks.broken_stays_broken)[0].value
    assert len(said) == 3
    assert set(said) == {"PeerLostError: rank 1 failed and will never answer"}


def test_a_rank_that_leaves_a_guarded_epoch_tells_the_others() -> None:
    """Also where it catches its error and goes on."""
    here, there = ended(ranks.left_scope)
    assert isinstance(here.error, PeerLostError), here.error
    assert "rank 1  left guarded_epoch 'train': raised ValueError: a bad batch" in str(here.error)
    assert isinstance(there.error, DivergedError)
    assert str(there.error).startswith("this rank has left guarded_epoch 'train'")


def test_ranks_with_other_numbers_of_steps() -> None:
    """The end of the epoch meets a step."""
    error = same_error(ended(ranks.other_numbers_of_steps), MismatchError)
    assert 'rank 1 calls all_reduce sum, rank 0 end of guarded_epoch "train"' in str(error)


def test_a_guard_that_is_off_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is on has one."""
    assert run(2, ranks.threads, backend="gloo") == [["distmetrics guard"]] * 2
    monkeypatch.setenv("DISTMETRICS_GUARD", "off")
    assert run(2, ranks.threads, backend="gloo") == [[], []]


def test_the_users_thread_never_touches_the_store() -> None:
    """Also where it waits, and where its wait ends in a verdict."""
    for outcome in ended(ranks.threads_at_the_store):
        assert outcome.value
        assert "MainThread" not in outcome.value


def test_a_guard_that_warns_lets_the_job_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is late beyond the deadline is named in the log, and then it comes."""
    monkeypatch.setenv("DISTMETRICS_GUARD", "warn")
    monkeypatch.setenv("DISTMETRICS_TIMEOUT", "0.5")
    (found, said), (same, nothing) = run(2, ranks.listening, "slow", 1, backend="gloo")
    assert found == same == [3.0] * 3
    assert len(said) == 1
    assert "rank 1 did not come to a collective within 0.5 s" in said[0]
    assert nothing == []


def test_a_report_of_every_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also of the one that did not raise: it was busy elsewhere, and its guard writes for it."""
    monkeypatch.setenv("DISTMETRICS_REPORT", str(tmp_path / "report"))
    monkeypatch.setenv("DISTMETRICS_TIMEOUT", "1.5")
    ended(ranks.fault, "busy", 1)
    read = [json.loads((tmp_path / f"report/rank-{rank}.json").read_text()) for rank in range(2)]
    assert [found["rank"] for found in read] == [0, 1]
    assert read[0]["error"]["kind"] == "DivergedError"
    assert read[1]["error"] is None
    assert "tests/guard/ranks.py" in read[1]["where"][0]
    assert "multiprocessing" not in str(read[1]["where"])
    last = read[0]["calls"][-1]
    assert (last["op"], last["ended"], last["group"]) == ('all_reduce sum "sum 1"', None, "world")
    assert read[1]["calls"][-1]["op"] == 'all_reduce sum "sum 0"'


def test_ranks_that_ask_each_other_for_reports_keep_their_own(tmp_path: Path) -> None:
    """Both raise, and each asks the other."""
    with use_settings(report=tmp_path):
        ended(ranks.groups_in_another_order)
    read = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [found["error"]["kind"] for found in read] == ["DivergedError"] * 2
