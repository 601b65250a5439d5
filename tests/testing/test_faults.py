"""Faults: each strikes one rank where it should, on threads as on processes; survivors are told, and nothing hangs."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from distmetrics.comm.communicator import SingleCommunicator
from distmetrics.errors import ConfigurationError, InputError
from distmetrics.testing import Outcome, outcomes, run
from distmetrics.testing.faults import (
    Fault,
    delay,
    injected,
    kill,
    raises,
    reshape,
    retype,
    skip,
    stop,
    swap,
)
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import both_backends
from tests.testing import struck


def kinds(ended: list[Outcome]) -> list[str]:
    return [type(outcome.error).__name__ if outcome.error else "" for outcome in ended]


@both_backends
@pytest.mark.parametrize("fault", [kill(2, "manifest"), raises(2, 2), skip(2, "manifest")], ids=str)
def test_faults_over_a_layout(backend: Any, fault: Fault) -> None:
    """They strike the calls of its groups, but not the making of them; every rank is told."""
    ended = outcomes(4, struck.twice, backend=backend, faults=[fault], layout={"dp": 2, "tp": 2}, limit=60)
    assert all(kinds(ended)), ended
    assert all("left behind" not in str(each.error) and "was stopped" not in str(each.error) for each in ended)
    assert "never reached" not in str(ended[2].error)


@pytest.mark.parametrize("fault", [delay(1, "data", 0.01), swap(1, "manifest"), reshape(1, 1, (3,))], ids=str)
def test_a_result_over_a_layout_is_right_or_an_error(fault: Fault) -> None:
    """A swap is one of two calls of the same group: what came in between is made before both."""
    for layout in ({"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}):
        right = run(4, struck.twice, layout=layout)
        for found, value in zip(outcomes(4, struck.twice, faults=[fault], layout=layout), right, strict=True):
            assert found.error or found.value == value


def test_a_skipped_collective_may_give_a_wrong_number_before_it_is_noticed() -> None:
    """What the fault is for: the next call of the same shape pairs with the one that was left out."""

    def two(comm: Any) -> float:
        first = float(comm.all_reduce(torch.tensor(1.0), "sum"))
        return first if comm.rank else float(comm.all_reduce(torch.tensor(100.0), "sum"))

    ended = outcomes(2, two, faults=[skip(0, 1)])
    assert [outcome.value for outcome in ended] == [101.0, 101.0]


@pytest.mark.gloo
def test_two_swapped_collectives_are_a_mismatch() -> None:
    """Of the transport itself: gloo hangs or aborts there, and the limit ends it."""
    found = outcomes(3, struck.mixed, faults=[swap(2, 1)])
    assert kinds(found) == ["MismatchError"] * 3
    assert re.search(r"rank 2 +all_gather int64\[1\]", str(found[0].error))
    ended = outcomes(3, struck.mixed, backend="gloo", faults=[swap(2, 1)], limit=10)
    assert any(kinds(ended))


@pytest.mark.parametrize(
    ("fault", "sent"),
    [
        (reshape(1, 1, (3, 1)), "all_reduce sum float32[3, 1]"),
        (reshape(1, "all_reduce", lambda x: x[:1]), "all_reduce sum float32[1]"),
        (retype(1, "all_reduce sum", torch.float64), "all_reduce sum float64[2]"),
        (retype(1, "all_to_all", torch.int32), "all_to_all int32[]"),
        (reshape(1, 4, (5,)), "broadcast from rank 0 int64[5]"),
    ],
)
def test_another_shape_or_dtype_is_a_mismatch(fault: Fault, sent: str) -> None:
    ended = outcomes(3, struck.mixed, faults=[fault])
    assert kinds(ended) == ["MismatchError"] * 3
    assert re.search(f"rank 1 +{re.escape(sent)} ", str(ended[0].error))


def test_places_are_where_they_are_said_to_be() -> None:
    """Update comes before any collective, the manifest before the data, and compute after both."""
    finished: dict[str, int] = {}

    def counted(comm: Any, at: str) -> None:
        recording = RecordingCommunicator(comm)
        with contextlib.suppress(KeyError), injected(raises(0, at, KeyError(at)), recording):
            struck.score(comm)
        if comm.rank == 0:
            finished[at] = len(recording.calls)

    for at in ("update", "manifest", "data", "compute"):
        outcomes(2, counted, at)
    assert finished == {"update": 0, "manifest": 0, "data": 1, "compute": 2}


def test_several_faults_strike_one_after_another_and_an_error_may_be_a_class_or_left_out() -> None:
    for error, text in ((OSError("third"), "third"), (None, "injected: raises rank 1 at collective 3")):
        ended = outcomes(2, struck.sums, faults=[delay(1, 1, 0.01), raises(1, 3, error), delay(0, 2, 0.01)])
        assert str(ended[1].error) == text
    with pytest.raises(ZeroDivisionError):
        run(2, struck.sums, faults=[raises(1, 1, ZeroDivisionError)])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (kill(1, 9), r"kill rank 1 at collective 9: never reached; rank 1 made 3 collec"),
        (raises(0, "data"), "raises rank 0 at data: never reached"),
        (raises(0, "updtae"), "raises rank 0 at updtae: never reached"),
        (swap(1, 3), "swap on rank 1: no collective followed"),
    ],
)
def test_a_fault_that_never_strikes_is_an_error(fault: Fault, said: str) -> None:
    """Else the test would show nothing."""
    with pytest.raises(ConfigurationError, match=said):
        run(2, struck.sums, faults=[fault])


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: kill(-1, 1), "kill: rank must be 0 or more, got -1"),
    (lambda: kill(0, 0), "or a number of a collective from 1 on, got 0"),
    (lambda: kill(0, True), "at must be the name of a place, .* got True"),
    (lambda: kill(0, 1.5), "at must be the name of a place, .* got 1.5"),  # type: ignore[arg-type]
    (lambda: skip(0, "update"), "skip changes a collective, and 'update' is none"),
    (lambda: run(2, struck.sums, faults=[kill(2, 1)]), "a world of 2 has no rank 2"),
    (lambda: run(2, struck.mixed, faults=[retype(0, 1, torch.float32)]), "has that dtype and shape already"),
    (lambda: run(2, struck.mixed, faults=[reshape(0, "barrier", (1,))]), "changes nothing: barrier sends nothing"),
]


@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_what_makes_no_sense_is_refused(wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises((InputError, ConfigurationError), match=text):
        wrong()


@pytest.mark.parametrize("fault", [kill(0, 1), stop(0, 1)])
def test_the_process_of_the_test_is_never_struck(fault: Fault) -> None:
    with pytest.raises(ConfigurationError, match="the fault would strike the test itself"):  # noqa: SIM117
        with injected(fault, SingleCommunicator()) as comm:
            comm.barrier()


def test_a_profiler_of_the_user_s_is_put_back() -> None:
    events: list[str] = []

    def theirs(_frame: Any, event: str, _argument: Any) -> None:
        events.append(event)

    def measured(comm: Any) -> bool:
        sys.setprofile(theirs)
        try:
            with contextlib.suppress(KeyError), injected(raises(0, "update", KeyError()), comm):
                struck.score(comm)
            return sys.getprofile() is theirs
        finally:
            sys.setprofile(None)

    assert run(1, measured) == [True]
