"""A metric's life around a sync: forward, flags, copies, checkpoints, and being interrupted."""

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
from torchmetrics import CatMetric, MeanMetric, SumMetric
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from distmetrics import PeerLostError, StateError, sync_and_compute, synced
from distmetrics.metrics.adapters.torchmetrics import TorchmetricsAdapter
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import InterceptingCommunicator
from tests.backends import same_error
from tests.metrics.samples import collection, scores, states, updated


@pytest.mark.parametrize(
    "options", [{}, {"sync_on_compute": False}, {"compute_with_cache": False}, {"dist_sync_on_step": True}], ids=str
)
def test_forward_update_and_sync_in_turn(options: dict[str, bool]) -> None:
    """Whatever flags the metric was made with: the sync is what was asked for, and they are as before."""

    def work(comm: Any) -> Any:
        metric = MeanMetric(**options)
        seen = [float(metric(1.0 + comm.rank))]
        metric.update(3.0)
        seen += [float(sync_and_compute(metric, comm=comm)) for _ in range(2)]
        seen.append(float(metric(8.0)))
        metric.update(4.0)
        seen += [float(metric.compute()), float(sync_and_compute(metric, comm=comm)), float(metric.compute())]
        return seen

    for rank, seen in enumerate(run(2, work)):
        local = (1.0 + rank + 3.0 + 8.0 + 4.0) / 4
        assert seen == [1.0 + rank, 2.25, 2.25, 8.0, local, 4.125, local]


@pytest.mark.parametrize("how", [copy.deepcopy, lambda metric: pickle.loads(pickle.dumps(metric))])
def test_copies_inside_and_after(how: Any) -> None:
    """Inside, of the state of all ranks, which no later sync counts again; after, of the local one; loaded too."""

    def work(comm: Any) -> Any:
        metric = updated(SumMetric(), 1.0 + comm.rank)
        metric.persistent(True)
        with synced(metric, comm=comm):
            inside, saved = how(metric), dict(metric.state_dict())
            with pytest.raises(TorchMetricsUserError, match="synced"):  # what it adds would be lost
                metric(1.0)
        after, restored = how(metric), SumMetric()
        restored.persistent(True)
        restored.load_state_dict(saved)
        with pytest.raises(StateError, match="holds the state of all ranks already"):
            sync_and_compute(inside if comm.rank else metric, comm=comm)  # on one rank: the others must not wait
        local = float(metric.state_dict()["sum_value"])
        both = [float(sync_and_compute(each, comm=comm)) for each in (after, metric if comm.rank else restored)]
        return float(inside.compute()), local, both

    assert run(2, work) == [(3.0, 1.0, [3.0, 5.0]), (3.0, 2.0, [3.0, 5.0])]


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
    metrics = nn.ModuleList([updated(SumMetric(), 1.0), CatMetric(), collection(True)])
    metrics[1].update(torch.arange(10_000.0) + comm.rank)  # too long for the first round
    metrics[2].update(*scores(8, torch.Generator().manual_seed(comm.rank)))
    sync_and_compute(metrics, comm=comm)
    before = states(metrics)
    try:
        for _ in range(2):  # who is not met in the first is met in the second
            sync_and_compute(metrics, comm=Interrupting(comm, 1, calls, late, what))
    finally:
        assert states(metrics) == before


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
    metrics = nn.ModuleList([updated(kind(), torch.arange(3.0)) for kind in (SumMetric, CatMetric, MeanMetric)])
    before = states(metrics)
    monkeypatch.setattr(TorchmetricsAdapter, "storage", lambda _, metric: Stopping(vars(metric)))
    with pytest.raises(KeyboardInterrupt), synced(metrics):
        Stopping.left = changes
    assert states(metrics) == before


@pytest.mark.parametrize("make", [lambda: {"a": updated(SumMetric(), 1.0)}, lambda: collection(True)])
def test_ranks_that_share_a_metric_are_told(make: Any) -> None:
    """Threads that have the same object would see each other's state of all ranks come and go."""
    shared = make()
    for metric in shared.values():
        metric._update_count = 1
    for _ in range(2):  # whoever was refused has let go
        error = same_error(outcomes(3, lambda comm: sync_and_compute(shared, comm=comm)), StateError)
        assert "is being synced already" in str(error)
    assert run(3, lambda comm: sync_and_compute(copy.deepcopy(shared), comm=comm)) is not None
