"""A flush or a sync in the background gives what a blocking one gives, or the same error on every rank."""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryAUROC

import distmetrics as dm
from benchmarks.log_interleavings import Plan, by_processes, by_threads
from distmetrics.testing import outcomes, run
from tests.backends import same_error


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
    return [repr(script(comm, seed, True)) == repr(script(comm, seed, False)) for seed in seeds]


@pytest.mark.gloo
def test_on_processes() -> None:
    """And a rank that ends in the middle, or before its first call in the background, is named."""
    assert run(2, several, range(4), backend="gloo") == [[True] * 4] * 2
    assert by_processes(Plan(1, 2, rank=1, step=5, fault="exit")) == "right"
    first, _ = outcomes(2, ends_first, backend="gloo", limit=60)
    assert isinstance(first.error, dm.PeerLostError)
    assert first.error.peers == (1,)


def ends_first(comm: Any) -> dict[str, float]:
    log = dm.Log(comm)
    log.flush()
    if comm.rank:
        os._exit(3)
    return log.flush(wait=False).result()


def test_an_interleaving_ends_right_or_names_who_failed() -> None:
    for seed in range(40):
        assert by_threads(Plan.of(seed)) == "right", seed


def test_over_a_layout() -> None:
    def work(comm: Any) -> bool:
        over = dm.layout({"dp": 2, "tp": 2}, comm=comm, dp="shard", tp="same")
        metrics = MetricCollection({"mean": MeanMetric(), "auroc": BinaryAUROC()})
        scores = torch.tensor([0.1, 0.6, 0.4 + over.rank / 2])
        metrics["mean"].update(scores)
        metrics["auroc"].update(scores, torch.tensor([0, 1, over.rank]))
        handle = dm.sync_async(metrics, comm=over)
        expected = dm.sync_and_compute(metrics, comm=over)
        metrics.reset()
        return repr(handle.result()) == repr(expected)

    assert run(4, work) == [True] * 4


def summed(comm: Any, value: float = 1.0) -> Any:
    log = dm.Log(comm)
    log.sum("x", value)
    return log


def test_a_rank_that_returns_finishes_its_background() -> None:
    def work(comm: Any) -> dict[str, float]:
        handle = summed(comm).flush(wait=False)
        return handle.result() if comm.rank else {}

    assert run(2, work) == [{}, {"x": 2.0}]


def test_what_comes_after_does_not_count_and_what_cannot_be_copied_is_an_error_of_all() -> None:
    """Of a state that is no leaf of a graph neither."""

    def work(comm: Any) -> Any:
        metric = SumMetric()
        metric.sum_value, metric._update_count = torch.ones((), requires_grad=True) * (1 + comm.rank), 1
        handle = dm.sync_async(metric, comm=comm)
        metric.reset()
        metric.update(100.0)
        assert handle.result() == 3.0
        if comm.rank:
            metric.lock = threading.Lock()
        return dm.sync_async(metric, comm=comm).result()

    error = same_error(outcomes(2, work), dm.StateError)
    assert "a SumMetric cannot be copied: TypeError: cannot pickle '_thread.lock'" in str(error)
    assert "test_background.py:" in str(error)


def one_never_flushes(comm: Any) -> None:
    comm.barrier() if comm.rank else dm.Log(comm).flush(wait=False).result()


def one_waits(comm: Any) -> None:
    dm.Log(comm).flush(wait=False).result()
    dm.Log(comm).flush() if comm.rank else dm.Log(comm).flush(wait=False).result()


def another_call(comm: Any) -> Any:
    metric = SumMetric()
    metric.update(1.0)
    return dm.sync_async(metric, comm=comm).result() if comm.rank else summed(comm).flush(wait=False).result()


@pytest.mark.parametrize(
    ("work", "kind", "texts"),
    [
        (one_never_flushes, dm.DivergedError, ["waits, in the background, in Log.flush", "rank 1  waits in barrier"]),
        (one_waits, dm.DivergedError, ["waits in Log.flush"]),
        (another_call, dm.MismatchError, ["Log.flush", "sync", " in another_call"]),
    ],
)
def test_ranks_that_do_not_begin_alike_are_told(work: Any, kind: Any, texts: list[str]) -> None:
    for outcome in outcomes(2, work):
        assert type(outcome.error) is kind
        assert all(text in str(outcome.error) for text in texts)


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


def test_an_error_of_all_ranks_comes_before_that_of_a_writer() -> None:
    def full(row: Any, step: int) -> None:
        raise OSError("no space")

    def work(comm: Any) -> Any:
        log = dm.Log(comm, writers=[full])
        log.flush(wait=False)
        log.same("epoch", comm.rank)
        with pytest.raises(dm.MismatchError) as caught:
            log.flush()
        return repr(caught.value.__cause__)

    assert run(2, work) == ["OSError('no space')", "None"]
