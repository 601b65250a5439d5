"""Syncs that are made again: what is kept from one to the next changes no number, and is let go when it must be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics as tm
from torch import Tensor

from distmetrics import MismatchError, sync_and_compute, synced
from distmetrics.collectives.again import Again
from distmetrics.testing import outcomes, run
from tests.backends import both_backends, same_error

EPOCHS = 6


def metrics(lists: bool) -> Any:
    made = {"sum": tm.SumMetric(), "mean": tm.MeanMetric(), "max": tm.MaxMetric(), "min": tm.MinMetric()}
    return made | {"all": tm.CatMetric()} if lists else made


def data(rank: int, epoch: int) -> Tensor:
    return torch.arange(4.0) * (rank + 1) + 10 * epoch


def wanted(world_size: int, epoch: int, lists: bool) -> dict[str, Any]:
    everything = torch.cat([data(rank, epoch) for rank in range(world_size)])
    found = {"sum": everything.sum(), "mean": everything.mean(), "max": everything.max(), "min": everything.min()}
    return found | {"all": everything} if lists else found


def fill(made: Any, rank: int, epoch: int) -> None:
    for metric in made.values():
        metric.reset()
        metric.update(data(rank, epoch))


def kept(comm: Any) -> int:
    return sum(isinstance(value, Again) for value in comm.kept.values())


def epochs(comm: Any, lists: bool) -> list[int]:
    """Every epoch right, and what an epoch's block handed out is not written over; how many were kept after each."""
    made = metrics(lists)
    states, counts = [], []
    for epoch in range(EPOCHS):
        fill(made, comm.rank, epoch)
        torch.testing.assert_close(sync_and_compute(made, comm=comm), wanted(comm.world_size, epoch, lists))
        with synced(made, comm=comm):
            states.append((made["sum"].sum_value, made["max"].max_value))
        counts.append(kept(comm))
    for epoch, (total, largest) in enumerate(states):
        assert total == wanted(comm.world_size, epoch, False)["sum"]
        assert largest == wanted(comm.world_size, epoch, False)["max"]
    return counts


def run_in_second_world(world_size: int, fn: Any, *args: Any, backend: Any = "threads") -> list[Any]:
    """Run where the caches of what describes a state are filled already.

    Ranks that are threads share them. Where two make the same entry at once, one goes on with the other's from the next
    sync on, and keeps things one sync later.
    """
    if backend == "threads":
        run(world_size, fn, *args, backend=backend)
    return run(world_size, fn, *args, backend=backend)


@both_backends
@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("world_size", [2, 3])
def test_every_epoch_is_right(world_size: int, lists: bool, backend: Any) -> None:
    counts = run_in_second_world(world_size, epochs, lists, backend=backend)
    assert counts == [[0] + [2] * (EPOCHS - 1)] * world_size  # one for each of the two lines


def changes(comm: Any) -> None:
    """A rank that has no data in one epoch, and more in the next; a call made on the communicator directly."""
    made = metrics(True)
    for epoch in range(9):
        fill(made, comm.rank, epoch)
        everything = [data(rank, epoch) for rank in range(comm.world_size)]
        if epoch == 3:
            everything[1] = torch.empty(0)
            if comm.rank == 1:
                for metric in made.values():
                    metric.reset()
        if epoch == 4:
            everything[0] = torch.cat([everything[0], torch.full((2,), 7.0)])
            if comm.rank == 0:
                for metric in made.values():
                    metric.update(torch.full((2,), 7.0))
        if epoch == 6:
            comm.barrier()
        found = sync_and_compute(made, comm=comm)
        torch.testing.assert_close(found["all"], torch.cat(everything))
        torch.testing.assert_close(found["mean"], torch.cat(everything).mean())
        torch.testing.assert_close(found["sum"], torch.cat(everything).sum())


@both_backends
def test_a_rank_that_sends_something_else_for_once(backend: Any) -> None:
    run(3, changes, backend=backend)


def disagree(comm: Any) -> None:
    made, other = metrics(False), {"sum": tm.SumMetric()}
    for epoch in range(4):
        fill(made, comm.rank, epoch)
        fill(other, comm.rank, epoch)
        syncing = other if epoch == 3 and comm.rank == 1 else made
        assert sync_and_compute(syncing, comm=comm)["sum"] == wanted(2, epoch, False)["sum"]


@both_backends
def test_a_rank_with_other_metrics_is_an_error_on_every_rank(backend: Any) -> None:
    error = same_error(outcomes(2, disagree, backend=backend), MismatchError)
    assert "sync of metrics" in str(error)


def modes(comm: Any) -> None:
    """Lightning validates in inference mode, and a test of the user's own may not."""
    made = metrics(True)
    for epoch in range(EPOCHS):
        with torch.inference_mode(epoch % 4 < 2):
            fill(made, comm.rank, epoch)
            torch.testing.assert_close(sync_and_compute(made, comm=comm), wanted(comm.world_size, epoch, True))
    assert kept(comm) == 1


@both_backends
@pytest.mark.parametrize("world_size", [2, 3])
def test_in_and_out_of_inference_mode(world_size: int, backend: Any) -> None:
    run(world_size, modes, backend=backend)


def test_after_an_interrupt_nothing_of_it_is_used_again() -> None:
    """Its memory may still be at work: the next sync makes its own."""

    def work(comm: Any) -> list[int]:
        made, counts = metrics(False), []
        passed_on = comm.all_gather

        def interrupted(*args: Any) -> Any:
            passed_on(*args)
            raise KeyboardInterrupt

        def sync() -> Any:
            return sync_and_compute(made, comm=comm)["sum"]

        for epoch in range(EPOCHS):
            fill(made, comm.rank, epoch)
            if epoch == 3:
                comm.all_gather = lambda x, meanwhile=None, into=None: interrupted(x, meanwhile, into)
                with pytest.raises(KeyboardInterrupt):
                    sync()
                comm.all_gather = passed_on
                assert made["sum"].compute() == data(comm.rank, epoch).sum()
            else:
                assert sync() == wanted(2, epoch, False)["sum"]
            counts.append(kept(comm))
        return counts

    assert run_in_second_world(2, work) == [[0, 1, 1, 0, 0, 1]] * 2


def test_few_are_kept() -> None:
    def work(comm: Any) -> int:
        made = metrics(False)
        for epoch in range(3):
            for name in range(20):
                fill(made, comm.rank, epoch)
                found = sync_and_compute(made, comm=comm, name=f"metrics {name}")
                assert found["sum"] == wanted(2, epoch, False)["sum"]
        for _ in range(3):
            sync_and_compute(made, comm=comm)
        return len(comm.kept)

    assert run(2, work) == [8, 8]


def test_states_that_are_not_reduced_as_they_are() -> None:
    """Half precision is folded in float32, and the mean of integers is no integer: nothing is kept for such."""

    def work(comm: Any) -> int:
        metric = tm.MeanMetric().set_dtype(torch.bfloat16)
        for _ in range(4):
            metric.reset()
            metric.update(torch.tensor([256.0 + comm.rank, 2.0], dtype=torch.bfloat16))
            found = sync_and_compute(metric, comm=comm)
            torch.testing.assert_close(found.float(), torch.tensor(129.25), rtol=1e-2, atol=0)
        return kept(comm)

    assert run(2, work) == [0, 0]


def elsewhere(comm: Any) -> None:
    """The n-th sync, which is what makes something to keep, in a block that makes tensors on another device."""
    for first in range(3):
        metric = tm.SumMetric()
        for epoch in range(first, first + 4):
            metric.reset()
            for _ in range(first + 1):  # counts of updates that no sync before had
                metric.update(1.0 + comm.rank)
            with torch.device("meta" if epoch == 2 else "cpu"):
                found = sync_and_compute(metric, comm=comm, name=f"first {first}")
            assert found == (first + 1) * comm.world_size * (comm.world_size + 1) / 2


@both_backends
@pytest.mark.parametrize("world_size", [2, 3])
def test_another_default_device(world_size: int, backend: Any) -> None:
    """What is sent and received lies where the transport wants it, and what is kept is good in every block."""
    run(world_size, elsewhere, backend=backend)
