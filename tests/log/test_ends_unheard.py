"""What ranks do not hear alike does not make them part ways; errors of the background name a line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchmetrics import SumMetric

import distmetrics as dm
from distmetrics.testing import outcomes, run


def heard_by_one(comm: Any, waits: bool) -> list[Any]:
    """Rank 0 alone asks for the row of a flush that fails."""
    log, seen = dm.Log(comm), []
    for step in range(3):
        log.same("epoch", comm.rank if step == 0 else 7)
        log.sum("n", 1.0)
        try:
            if step and waits:
                seen.append(log.flush())
                continue
            handle = log.flush(wait=False)
            if comm.rank == 0 or step:
                seen.append(handle.result())
        except dm.DistmetricsError as error:
            seen.append(error.what)
    return seen


@pytest.mark.parametrize("waits", [True, False])
def test_an_error_that_one_rank_has_heard(waits: bool) -> None:
    """The next flush raises it on the other rank, says so to all, and nothing is lost."""
    first, second = run(2, heard_by_one, waits)
    assert "as the same on all ranks, and is not" in first[0]
    assert first[1] == f"Log.flush: the flush before failed, and nobody has asked: MismatchError: {first[0]} (rank 1)"
    assert second[0] == first[0]
    assert first[2:] == second[1:] == [{"epoch": 7.0, "n": 6.0}]


def heard_once(comm: Any) -> list[Any]:
    """Rank 0 asks for the row that fails, and nobody for any other."""
    rows: list[Any] = []
    log, seen = dm.Log(comm, writers=[lambda row, step: rows.append((step, row))]), []
    for step in range(5):
        log.same("epoch", comm.rank if step == 0 else 7)
        log.sum("n", 1.0)
        try:
            handle = log.flush(wait=False)
            if comm.rank == step == 0:
                handle.result()
        except dm.DistmetricsError as error:
            seen.append((step, type(error)))
    log.flush()
    return [*seen, *rows]


def test_an_error_is_not_told_for_ever() -> None:
    first, second = run(2, heard_once)
    rows = [(3, {"epoch": 7.0, "n": 6.0}), (4, {"epoch": 7.0, "n": 2.0}), (5, {"epoch": 7.0, "n": 2.0}), (6, {})]
    assert first == [(0, dm.MismatchError), (2, dm.StateError), *rows]
    assert second == [(1, dm.MismatchError)]


class Full:
    """A writer on a disk that is full."""

    def log_metrics(self, metrics: Any, step: int) -> None:
        raise OSError("no space")


def after_a_writer(comm: Any) -> Any:
    log = dm.Log(comm, writers=[Full()])
    log.flush(wait=False)
    log.same("epoch", comm.rank)
    try:
        return log.flush()
    except dm.MismatchError as error:
        return error.__cause__


def test_an_error_of_all_ranks_comes_before_that_of_a_writer() -> None:
    first, second = run(2, after_a_writer)
    assert str(first) == "no space"
    assert second is None


def other_order(comm: Any) -> Any:
    metric = SumMetric()
    metric.update(1.0)
    log = dm.Log(comm)
    log.sum("x", 1.0)
    if comm.rank:
        return dm.sync_async(metric, comm=comm).result()
    return log.flush(wait=False).result()


def test_another_call_is_named_with_its_line() -> None:
    for outcome in outcomes(2, other_order):
        assert isinstance(outcome.error, dm.MismatchError)
        text = str(outcome.error)
        assert "Log.flush" in text
        assert "sync" in text
        assert "other_order" in text


def test_a_state_tells_what_was_wrong() -> None:
    log, other = dm.Log(), dm.Log()
    log.sum("x", 1.0)
    log.mean("loss", 1.0, weight=torch.tensor(-1.0))
    state = log.state_dict()
    other.load_state_dict(state)
    for each in (log, other):
        with pytest.raises(dm.InputError, match="'loss': a weight is negative or not finite, first logged at"):
            each.flush()
        assert each.flush()["x"] == 1.0


def times(comm: Any) -> None:
    log = dm.Log(dm.layout({"dp": 2, "tp": 2}, comm=comm, dp="shard", tp="same"))
    log.sum("loss", 1.0)
    log.mean("seconds", float(comm.rank), weight=1)
    log.flush()


def test_what_differs_between_ranks_that_hold_the_same_is_named() -> None:
    for outcome in outcomes(4, times):
        assert isinstance(outcome.error, dm.LayoutError)
        assert "the value of 'seconds' differs between ranks" in str(outcome.error)
