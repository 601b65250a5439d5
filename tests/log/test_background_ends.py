"""Calls in the background where ranks fail, leave, or do not begin them alike."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
from torchmetrics import SumMetric

import distmetrics as dm
from benchmarks.log_interleavings import Plan, by_processes, by_threads
from distmetrics.testing import outcomes, run
from tests.backends import same_error


def test_an_interleaving_ends_right_or_names_who_failed() -> None:
    for seed in range(40):
        assert by_threads(Plan.of(seed)) == "right", seed


@pytest.mark.gloo
def test_a_process_that_ends_in_the_middle_is_named() -> None:
    assert by_processes(Plan(1, 2, rank=1, step=5, fault="exit")) == "right"


def returns_first(comm: Any) -> dict[str, float]:
    log = dm.Log(comm)
    log.sum("x", 1.0)
    handle = log.flush(wait=False)
    return {} if comm.rank == 0 else handle.result()


def test_a_rank_that_returns_finishes_its_background() -> None:
    assert run(2, returns_first) == [{}, {"x": 2.0}]


def uncopied(comm: Any) -> Any:
    metric = SumMetric()
    metric.update(1.0)
    if comm.rank:
        metric.lock = threading.Lock()
    return dm.sync_async(metric, comm=comm).result()


def test_a_metric_that_cannot_be_copied_is_an_error_of_all() -> None:
    error = same_error(outcomes(2, uncopied), dm.StateError)
    assert "a SumMetric cannot be copied: TypeError: cannot pickle '_thread.lock'" in str(error)
    assert "test_background_ends.py:" in str(error)


def with_grad(comm: Any) -> tuple[Any, bool]:
    """Sync a state that is no leaf of a graph, and update while the sync is under way."""
    metric = SumMetric()
    total = torch.ones((), requires_grad=True) * (1 + comm.rank)
    metric.sum_value, metric._update_count = total, 1
    handle = dm.sync_async(metric, comm=comm)
    metric.reset()
    metric.update(100.0)
    return float(handle.result()), metric.sum_value is not total


def test_what_comes_after_does_not_count() -> None:
    assert run(2, with_grad) == [(3.0, True)] * 2


def one_waits(comm: Any) -> dict[str, float]:
    log = dm.Log(comm)
    log.sum("x", 1.0)
    return log.flush() if comm.rank else log.flush(wait=False).result()


@pytest.mark.gloo
def test_a_flush_against_the_first_one_in_the_background() -> None:
    error = same_error(outcomes(2, one_waits, backend="gloo", limit=60), dm.MismatchError)
    assert "rank 0  waits in the first call in the background" in str(error)
    assert "rank 1  waits in Log.flush" in str(error)


def ends_first(comm: Any) -> dict[str, float]:
    log = dm.Log(comm)
    log.flush()
    if comm.rank:
        os._exit(3)
    return log.flush(wait=False).result()


@pytest.mark.gloo
def test_a_process_that_ends_before_the_first_call_in_the_background() -> None:
    first, _ = outcomes(2, ends_first, backend="gloo", limit=60)
    assert isinstance(first.error, dm.PeerLostError)
    assert first.error.peers == (1,)


def crossed(comm: Any) -> None:
    log = dm.Log(comm)
    log.flush(wait=False).result()
    if comm.rank:
        log.flush()
    else:
        log.flush(wait=False).result()


def test_a_flush_against_one_in_the_background_is_decided() -> None:
    for outcome in outcomes(2, crossed):
        assert isinstance(outcome.error, dm.DivergedError), outcome.error
        assert "waits in Log.flush" in str(outcome.error)
