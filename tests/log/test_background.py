"""A flush or a sync in the background gives what a blocking one gives."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryAUROC

import distmetrics as dm
from distmetrics.testing import run


def interleaved(comm: Any, seed: int) -> list[Any]:
    """Make the same calls on every rank, and ask for results at moments of this rank's own."""
    shared, own = random.Random(seed), random.Random(seed * 31 + comm.rank)
    log, metric = dm.Log(comm), SumMetric()
    results: list[Any] = []
    waiting: list[tuple[int, Any]] = []
    for step in range(8):
        log.mean("loss", torch.tensor(float(step + comm.rank)), weight=1 + comm.rank)
        log.std("std", [step, comm.rank])
        log.sum("array", [step, comm.rank])
        metric.update(torch.tensor(float(step * comm.rank)))
        what = shared.choice(["log", "metric", "flush", "mean", "nothing"])
        if what == "log":
            waiting.append((step, log.flush(wait=False)))
        elif what == "metric":
            waiting.append((step, dm.sync_async(metric, comm=comm)))
            metric.reset()
        elif what == "flush":
            results.append((step, log.flush()))
        elif what == "mean":
            results.append((step, dm.mean(float(step), weight=1, comm=comm)))
        while waiting and own.random() < 0.3:
            step_of, handle = waiting.pop(own.randrange(len(waiting)))
            results.append((step_of, handle.result()))
    results += [(step, handle.result()) for step, handle in waiting]
    return [(step, value) for step, value in sorted(results, key=lambda each: each[0])]


def blocking(comm: Any, seed: int) -> list[Any]:
    """Make the same calls without a background."""
    shared = random.Random(seed)
    log, metric = dm.Log(comm), SumMetric()
    results: list[Any] = []
    for step in range(8):
        log.mean("loss", torch.tensor(float(step + comm.rank)), weight=1 + comm.rank)
        log.std("std", [step, comm.rank])
        log.sum("array", [step, comm.rank])
        metric.update(torch.tensor(float(step * comm.rank)))
        what = shared.choice(["log", "metric", "flush", "mean", "nothing"])
        if what in ("log", "flush"):
            results.append((step, log.flush()))
        elif what == "metric":
            results.append((step, dm.sync_and_compute(metric, comm=comm)))
            metric.reset()
        elif what == "mean":
            results.append((step, dm.mean(float(step), weight=1, comm=comm)))
    return results


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_any_interleaving_gives_the_bits_of_blocking_calls(seed: int, world_size: int) -> None:
    assert repr(run(world_size, interleaved, seed)) == repr(run(world_size, blocking, seed))


def several(comm: Any, seeds: range) -> list[Any]:
    return [(interleaved(comm, seed), blocking(comm, seed)) for seed in seeds]


def test_on_processes() -> None:
    for per_seed in run(2, several, range(12), backend="gloo"):
        for ours, expected in per_seed:
            assert repr(ours) == repr(expected)


def failing(comm: Any) -> tuple[str, str, dict[str, float]]:
    log = dm.Log(comm)
    log.sum("kept", 1.0)
    log.same("epoch", comm.rank)
    handle = log.flush(wait=False)
    with pytest.raises(dm.MismatchError) as asked:
        handle.result()
    log.same("epoch", 5)
    row = log.flush()
    log.same("epoch", comm.rank)
    log.flush(wait=False)
    with pytest.raises(dm.MismatchError) as unasked:
        log.flush()
    return str(asked.value), str(unasked.value), row


@pytest.mark.parametrize("backend", ["threads", "gloo"])
def test_an_error_is_raised_by_the_result_or_by_the_next_flush(backend: str) -> None:
    for asked, unasked, row in run(2, failing, backend=backend):
        assert "'epoch' was logged as the same" in asked
        assert "'epoch' was logged as the same" in unasked
        assert row == {"epoch": 5.0, "kept": 2.0}


def nobody_asks(comm: Any) -> list[str]:
    log = dm.Log(comm)
    log.same("epoch", comm.rank)
    handle = log.flush(wait=False)
    handle.wait()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle.__del__()
    with pytest.raises(dm.MismatchError):
        handle.result()
    return [str(each.message) for each in caught]


def test_an_error_that_nobody_asked_for_is_told() -> None:
    for (text,) in run(2, nobody_asks, backend="gloo"):
        assert "a call in the background has failed: MismatchError: 'epoch' was logged" in text


def one_never_flushes(comm: Any) -> None:
    log = dm.Log(comm)
    if comm.rank:
        comm.barrier()
    else:
        log.flush(wait=False).result()


def test_a_deadlock_over_the_background_is_decided() -> None:
    with pytest.raises(dm.DivergedError) as caught:
        run(2, one_never_flushes)
    assert "waits, in the background, in Log.flush" in str(caught.value)
    assert "rank 1  waits in barrier" in str(caught.value)


def one_dies(comm: Any) -> None:
    handle = dm.Log(comm).flush(wait=False) if comm.rank == 0 else None
    if handle is None:
        raise RuntimeError("rank 1 dies")
    handle.result()


def test_a_rank_that_dies_is_named() -> None:
    with pytest.raises(RuntimeError, match="rank 1 dies"):
        run(2, one_dies)


def over_a_mesh(comm: Any) -> Any:
    over = dm.layout({"dp": 2, "tp": 2}, comm=comm, dp="shard", tp="same")
    metrics = MetricCollection({"mean": MeanMetric(), "auroc": BinaryAUROC()})
    scores = torch.tensor([0.1, 0.6, 0.4 + over.rank / 2])
    metrics["mean"].update(scores)
    metrics["auroc"].update(scores, torch.tensor([0, 1, over.rank]))
    handle = dm.sync_async(metrics, comm=over)
    expected = dm.sync_and_compute(metrics, comm=over)
    metrics.reset()
    return repr(handle.result()) == repr(expected)


@pytest.mark.parametrize("backend", ["threads", "gloo"])
def test_over_a_layout(backend: str) -> None:
    assert run(4, over_a_mesh, backend=backend) == [True] * 4
