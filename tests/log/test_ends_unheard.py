"""Errors of the background name a line; so do a state, and copies that differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchmetrics import SumMetric

import distmetrics as dm
from distmetrics.testing.world import outcomes


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


@pytest.mark.parametrize("text", ["nan", b"1"])
def test_a_text_is_no_number(text: Any) -> None:
    log = dm.Log()
    log.sum("x", text)
    with pytest.raises(dm.InputError, match="no number"):
        log.flush()


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
