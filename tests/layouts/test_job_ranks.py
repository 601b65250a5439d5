"""Errors of calls by some ranks of a job name them as the job numbers them, on each of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchmetrics import CatMetric, MeanMetric
from torchmetrics.classification import MulticlassConfusionMatrix

import distmetrics as dm
from distmetrics.data import exact
from distmetrics.testing import outcomes, run
from tests.layouts.processes import on_four_processes


def raised(call: Any) -> dm.DistmetricsError | None:
    try:
        call()
    except dm.DistmetricsError as error:
        return error
    return None


def shapes(comm: Any) -> None:
    """Let the last rank send another shape."""
    dm.all_reduce(torch.ones(2 + (comm.rank == comm.world_size - 1)), "sum", comm=comm)


def refused(comm: Any) -> None:
    """Let the last rank send what cannot be sent."""
    dm.all_gather("text" if comm.rank == comm.world_size - 1 else 1.0, comm=comm)


def no_weight(comm: Any) -> None:
    dm.mean(1.0, weight=0, comm=comm)


def other_classes(comm: Any) -> None:
    metric = MulticlassConfusionMatrix(num_classes=2 + (comm.rank == comm.world_size - 1))
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
    dm.sync_and_compute(metric, comm=comm)


def other_loaders(comm: Any) -> None:
    exact(torch.utils.data.DataLoader(range(4 + (comm.rank == comm.world_size - 1))), comm=comm)  # type: ignore[arg-type]


def other_values(comm: Any) -> None:
    dm.gather_samples([7], torch.tensor([float(comm.rank)]), comm=comm)


CALLS = [shapes, refused, no_weight, other_classes, other_loaders, other_values]


def of_subgroup(comm: Any, call: Any) -> Any:
    """Make a bad call on the ranks 1 and 3."""
    return raised(lambda: call(comm.subgroup([1, 3]))) if comm.rank % 2 else None


def of_nested(comm: Any, call: Any) -> Any:
    """Make it on ranks 1 and 3, as ranks 0 and 2 of a subgroup of 1, 2 and 3."""
    if comm.rank == 0:
        return None
    ranks = comm.subgroup([1, 2, 3])
    return raised(lambda: call(ranks.subgroup([0, 2]))) if comm.rank != 2 else None


def of_layout(comm: Any, call: Any) -> Any:
    """Make it over the shards of a layout, which are the ranks 1 and 3 for the ranks 1 and 3."""
    return raised(lambda: call(dm.layout({"dp": 2, "tp": 2}, comm=comm, dp="shard", tp="same")))


def of_owner(comm: Any, call: Any) -> Any:
    return raised(lambda: call(dm.layout({"pp": 2, "dp": 2}, comm=comm, pp="last", dp="shard")))


@pytest.mark.parametrize("way", [of_subgroup, of_nested, of_layout])
@pytest.mark.parametrize("call", CALLS)
def test_of_a_subgroup_and_of_a_layout(way: Any, call: Any) -> None:
    """Loaders are those of all ranks of a layout: ranks that hold one shard must draw the same order."""
    for rank, error in enumerate(run(4, way, call)):
        if way is not of_layout and rank % 2 == 0:
            assert error is None
            continue
        assert not isinstance(error, dm.LayoutError)
        assert error.rank == rank
        others = {0, 1, 2, 3} if call is other_loaders and way is of_layout else {rank, (rank + 2) % 4}
        assert set() < {*error.per_rank, *error.peers} <= others
        if call in (shapes, refused):
            assert f"rank {max(others)}" in error.what
            assert error.args == (error.what,)


@pytest.mark.parametrize("call", [shapes, other_classes])
def test_ranks_without_values_are_told_of_those_with_some(call: Any) -> None:
    errors = run(4, of_owner, call)
    for rank, error in enumerate(errors):
        assert error.rank == rank
        assert set(error.per_rank) | set(error.peers) == {2, 3}
        assert str(error) == str(errors[3])


def on_processes(comm: Any) -> list[str]:
    ways = (of_subgroup, of_nested, of_layout, of_owner)
    return [str(way(comm, call)) for way in ways for call in (shapes, other_classes)]


@on_four_processes
def test_processes_are_numbered_alike(four_processes: list[Any]) -> None:
    assert [each["errors"] for each in four_processes] == run(4, on_processes)


def scores(seed: int) -> Any:
    metric = CatMetric()
    metric.update(torch.rand(8, generator=torch.Generator().manual_seed(seed)))
    return {"scores": metric}


@pytest.mark.parametrize(
    ("tp", "what"), [("same", "scores.value differs between ranks 1-2"), ("shard", "ranks 1-2 hold the same data")]
)
def test_a_false_claim_over_a_part_of_the_job(tp: str, what: str) -> None:
    """Over a mesh of the ranks 1 to 4 of 5; and of a flat sync of copies the warning names them alike."""

    def work(comm: Any) -> Any:
        if comm.rank == 0:
            return None
        ranks = dm.layout({"dp": 2, "tp": 2}, comm=comm.subgroup([1, 2, 3, 4]), dp="shard", tp=tp)
        seed = comm.rank if tp == "same" else (comm.rank - 1) // 2
        return raised(lambda: dm.sync_and_compute(scores(seed), comm=ranks))

    _, *errors = run(5, work)
    for rank, error in enumerate(errors, 1):
        assert isinstance(error, dm.LayoutError)
        assert what in error.what
        assert (error.rank, error.peers) == (rank, (1, 2))

    def copies(comm: Any) -> None:
        if comm.rank in (1, 2):
            dm.sync_and_compute(scores(0), comm=comm.subgroup([1, 2]))

    with pytest.warns(dm.RepeatedSamplesWarning, match="ranks 1-2 hold the same data"):
        run(4, copies)


def test_a_rank_that_is_lost() -> None:
    """It never makes a call over a layout that the others make."""

    def work(comm: Any) -> None:
        ranks = dm.layout({"dp": 2, "tp": 2}, comm=comm, dp="shard", tp="same")
        if comm.rank == 3:
            raise RuntimeError("rank 3 is broken")
        loss = MeanMetric()
        loss.update(1.0 + ranks.rank)
        dm.sync_and_compute(loss, comm=ranks)

    *others, lost = outcomes(4, work)
    assert isinstance(lost.error, RuntimeError)
    for rank, outcome in enumerate(others):
        assert isinstance(outcome.error, dm.PeerLostError)
        assert (outcome.error.peers, outcome.error.rank) == ((3,), rank)
        assert "rank 3" in outcome.error.what


def test_an_error_is_numbered_once() -> None:
    error = dm.MismatchError(["ranks ", dm.errors.Ranks([0, 2])], per_rank={0: "a"}, rank=2, peers=[0])
    error.call_ranks([5, 6, 7])
    error.call_ranks([0, 1, 2])
    assert (error.what, error.per_rank, error.rank, error.peers) == ("ranks ranks 5, 7", {5: "a"}, 7, (5,))
    assert error.compared.startswith("ranks ranks 0, 2")


class Raising:
    """Raises where its numbers are asked for, before a call has exchanged anything."""

    def __len__(self) -> int:
        raise TimeoutError

    __getitem__ = __len__


def leaves_a_call(comm: Any, exchanged: bool, role: str) -> list[str]:
    """On the last rank an error of its own ends a call over a layout; it is caught, and the rank goes on."""
    ranks = dm.layout({"dp": 2, "x": 2}, comm=comm, dp="shard", x=role)
    is_last = comm.rank == comm.world_size - 1
    gather = ranks.inner.all_gather

    def strike(x: torch.Tensor) -> Any:
        gather(x)
        raise TimeoutError

    ended = []
    for call in range(3):
        if is_last and exchanged:
            ranks.inner.all_gather = strike if call == 0 else gather
        value = Raising() if is_last and not exchanged and call == 0 else float(call)
        try:
            ended.append(str(dm.all_reduce(value, comm=ranks)))
        except (TimeoutError, dm.DistmetricsError) as error:
            ended.append(type(error).__name__)
    return ended


@pytest.mark.parametrize("role", ["same", "last", "shard"])
@pytest.mark.parametrize("exchanged", [False, True])
def test_a_rank_that_left_a_call_over_a_layout_never_gets_a_wrong_value(exchanged: bool, role: str) -> None:
    """No rank may take the number of another call, and none waits for ever."""
    for rank, ended in enumerate(outcomes(4, leaves_a_call, exchanged, role)):
        assert ended.error is None or isinstance(ended.error, dm.DistmetricsError), rank
        told = ended.value or ["DivergedError"]
        factor = 4 if role == "shard" else 2
        numbers = {call: text for call, text in enumerate(told) if not text.endswith("Error")}
        assert numbers == {call: str(torch.tensor(float(factor * call), dtype=torch.float64)) for call in numbers}
        assert any(text.endswith("Error") for text in told), (rank, told)
