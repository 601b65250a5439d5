"""A flush or a sync in the background gives what a blocking one gives."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryAUROC

import distmetrics as dm
from distmetrics.testing import run


def script(comm: Any, seed: int, background: bool) -> list[Any]:
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
        if what == "log" and background:
            waiting.append((step, log.flush(wait=False)))
        elif what in ("log", "flush"):
            results.append((step, log.flush()))
        elif what == "metric":
            if background:
                waiting.append((step, dm.sync_async(metric, comm=comm)))
            else:
                results.append((step, dm.sync_and_compute(metric, comm=comm)))
            metric.reset()
        elif what == "mean":
            results.append((step, dm.mean(float(step), weight=1, comm=comm)))
        while waiting and own.random() < 0.3:
            step_of, handle = waiting.pop(own.randrange(len(waiting)))
            results.append((step_of, handle.result()))
    results += [(step, handle.result()) for step, handle in waiting]
    return sorted(results, key=lambda each: each[0])


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_any_interleaving_gives_the_bits_of_blocking_calls(seed: int, world_size: int) -> None:
    assert repr(run(world_size, script, seed, True)) == repr(run(world_size, script, seed, False))


def several(comm: Any, seeds: range) -> list[Any]:
    return [(script(comm, seed, True), script(comm, seed, False)) for seed in seeds]


@pytest.mark.gloo
def test_on_processes() -> None:
    for per_seed in run(2, several, range(6), backend="gloo"):
        for ours, expected in per_seed:
            assert repr(ours) == repr(expected)


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


def test_over_a_layout() -> None:
    assert run(4, over_a_mesh) == [True] * 4
