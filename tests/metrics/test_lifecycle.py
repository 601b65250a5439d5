"""A metric's life around a sync: reset, forward, flags, copies, checkpoints, order, and being interrupted."""

from __future__ import annotations

import collections
import copy
import os
import pickle
import signal
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import Metric, aggregation
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from distmetrics import PeerLostError, StateError, sync_and_compute, synced
from distmetrics.metrics.adapters.torchmetrics import TorchmetricsAdapter
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import InterceptingCommunicator
from tests.metrics.samples import collection, same, scores, states


def summed(*values: float, **options: Any) -> Any:
    metric = aggregation.SumMetric(**options)
    for value in values:
        metric.update(value)
    return metric


# -- reset, forward, flags


def test_reset_inside_lasts() -> None:
    """As within torchmetrics' own sync: evaluation code that resets may stand in the block."""

    def work(comm: Any) -> Any:
        metrics = collection(True)
        metrics.update(*scores(8, torch.Generator().manual_seed(comm.rank)))
        total, kept = summed(1.0), summed(2.0)
        with synced([metrics, total, kept], comm=comm):
            value = float(total.compute())
            total.reset()
            metrics.reset()
        assert all(member._update_count == 0 for member in metrics.values())
        total.update(10.0)
        with pytest.raises(ZeroDivisionError), synced(kept, comm=comm):  # an error undoes it
            _ = 1 / (kept.reset() or 0)
        return value, float(sync_and_compute(total, comm=comm)), float(sync_and_compute(kept, comm=comm))

    assert run(2, work) == [(2.0, 20.0, 4.0)] * 2
    assert run(1, work) == [(1.0, 10.0, 2.0)]


@pytest.mark.parametrize(
    "options",
    [{}, {"sync_on_compute": False}, {"compute_with_cache": False}, {"dist_sync_on_step": True}],
    ids=lambda options: next(iter(options), "default"),
)
def test_forward_update_and_sync_in_turn(options: dict[str, bool]) -> None:
    """Whatever flags the metric was made with: the sync is what was asked for, and they are as before."""

    def work(comm: Any) -> Any:
        metric = aggregation.MeanMetric(**options)
        flags = metric._to_sync, metric._should_unsync, metric.sync_on_compute, metric.compute_with_cache
        seen = [float(metric(1.0 + comm.rank))]
        metric.update(3.0)
        seen += [float(sync_and_compute(metric, comm=comm)) for _ in range(2)]
        seen.append(float(metric(8.0)))
        metric.update(4.0)
        seen += [float(metric.compute()), float(sync_and_compute(metric, comm=comm)), float(metric.compute())]
        assert flags == (metric._to_sync, metric._should_unsync, metric.sync_on_compute, metric.compute_with_cache)
        return seen

    for rank, seen in enumerate(run(2, work)):
        local = (1.0 + rank + 3.0 + 8.0 + 4.0) / 4
        assert seen == [1.0 + rank, 2.25, 2.25, 8.0, local, 4.125, local]


# -- copies and checkpoints


@pytest.mark.parametrize("how", [copy.deepcopy, lambda metric: pickle.loads(pickle.dumps(metric))])
def test_copies_inside_and_after(how: Any) -> None:
    """Inside, of the state of all ranks, which no later sync counts again; after, of the local one."""

    def work(comm: Any) -> Any:
        metric = summed(1.0 + comm.rank)
        metric.persistent(True)
        with synced(metric, comm=comm):
            inside, saved = how(metric), dict(metric.state_dict())
            with pytest.raises(TorchMetricsUserError, match="synced"):  # what it adds would be lost
                metric(1.0)
        after, restored = how(metric), summed()
        restored.load_state_dict(saved, strict=False)
        with pytest.raises(StateError, match="holds the state of all ranks already"):
            sync_and_compute(inside, comm=comm)
        local = float(metric.state_dict()["sum_value"])
        return float(inside.compute()), float(saved["sum_value"]), local, float(sync_and_compute(after, comm=comm))

    assert run(2, work) == [(3.0, 3.0, 1.0, 3.0), (3.0, 3.0, 2.0, 3.0)]


# -- interrupted


class Interrupting(InterceptingCommunicator):
    """A communicator in which something happens just before, or just after, the n-th collective of one rank."""

    def __init__(self, comm: Any, rank: int, calls: int, late: bool, what: Any) -> None:
        super().__init__(comm)
        self.at, self.late, self.what, self.calls = (rank, calls), late, what, 0

    def pass_on(self, op: str, make: Any, sent: list[Tensor], alone: Any) -> Any:
        self.calls += op == "all_gather"
        strikes = op == "all_gather" and (self.rank, self.calls) == self.at
        if strikes and not self.late:
            self.what()
        result = make(*sent)
        if strikes and self.late:
            self.what()
        return result


def stop() -> None:
    raise KeyboardInterrupt


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted(comm: Any, calls: int, late: bool, what: Any) -> None:
    metrics = nn.ModuleList([summed(1.0), aggregation.CatMetric(), collection(True)])
    metrics[1].update(torch.arange(10_000.0) + comm.rank)  # too long for the first round
    metrics[2].update(*scores(8, torch.Generator().manual_seed(comm.rank)))
    sync_and_compute(metrics, comm=comm)
    before = states(metrics)
    try:
        for _ in range(2):  # who is not met in the first is met in the second
            sync_and_compute(metrics, comm=Interrupting(comm, 1, calls, late, what))
    finally:
        assert same(states(metrics), before)
        assert not any(module._is_synced for module in metrics.modules() if isinstance(module, Metric))


@pytest.mark.parametrize(("calls", "late"), [(1, False), (2, True)])
def test_ctrl_c_in_a_collective(calls: int, late: bool) -> None:
    """In either round, before or after its data: local state is as before on all ranks, and the others are told."""
    ended = outcomes(3, interrupted, calls, late, stop)
    assert type(ended[1].error) is KeyboardInterrupt
    for other in (ended[0].error, ended[2].error):
        assert type(other) is PeerLostError
        assert 1 in other.peers


@pytest.mark.gloo
def test_a_rank_killed_while_the_others_sync() -> None:
    """An error that names it on every survivor, whose local state is as before."""
    ended = outcomes(3, interrupted, 2, False, kill, backend="gloo")
    for other in (ended[0].error, ended[2].error):
        assert type(other) is PeerLostError
        assert "rank 1" in str(other)
        assert "was killed by SIGKILL" in str(other)


class Raises(Metric):
    """Interrupted while it computes, having changed its state."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("seen", [], dist_reduce_fx="cat")

    def update(self, x: float) -> None:
        self.total = self.total + x
        self.seen.append(torch.tensor([x]))  # type: ignore[operator,union-attr]

    def compute(self) -> Any:
        self.total.add_(1)
        self.seen = []
        raise KeyboardInterrupt


@pytest.mark.parametrize("world_size", [1, 2])
def test_ctrl_c_in_compute(world_size: int) -> None:
    """After the state of all ranks was put in, and changed."""

    def work(comm: Any) -> Any:
        metrics = nn.ModuleList([summed(1.0), Raises()])
        metrics[1].update(2.0)
        before, seen = states(metrics), metrics[1].seen
        with pytest.raises(KeyboardInterrupt):
            sync_and_compute(metrics, comm=comm)
        return same(states(metrics), before) and metrics[1].seen is seen

    assert run(world_size, work) == [True] * world_size


class Stopping(collections.UserDict[str, Any]):
    """A metric's storage in which the user stops the n-th change of a metric whose state is that of all ranks."""

    left = 0

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.data = attributes  # itself, not a copy

    def __setitem__(self, name: str, value: Any) -> None:
        if self.data["_is_synced"]:
            Stopping.left -= 1
            if Stopping.left == 0:
                raise KeyboardInterrupt
        super().__setitem__(name, value)


@pytest.mark.parametrize("changes", [1, 4, 9])
def test_ctrl_c_while_local_state_is_put_back(changes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = nn.ModuleList([summed(1.0), aggregation.CatMetric(), aggregation.MeanMetric()])
    for metric in metrics:
        metric.update(torch.arange(3.0))  # type: ignore[operator]
    before = states(metrics)
    monkeypatch.setattr(TorchmetricsAdapter, "storage", lambda _, metric: Stopping(vars(metric)))
    with pytest.raises(KeyboardInterrupt), synced(metrics):
        Stopping.left = changes
    assert same(states(metrics), before)
    assert not any(module._is_synced for module in metrics.modules() if isinstance(module, Metric))


@pytest.mark.parametrize("make", [lambda: {"a": summed(1.0)}, lambda: collection(True)])
def test_ranks_that_share_a_metric_are_told(make: Any) -> None:
    """Threads that have the same object would see each other's state of all ranks come and go."""
    shared = make()
    for metric in shared.values() if hasattr(shared, "values") else []:
        metric._update_count = 1
    for _ in range(2):  # whoever was refused has let go
        for outcome in outcomes(3, lambda comm: sync_and_compute(shared, comm=comm)):
            assert type(outcome.error) is StateError
            assert "is being synced already" in str(outcome.error)
    assert run(3, lambda comm: sync_and_compute(copy.deepcopy(shared), comm=comm)) is not None
