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
    classes = 2 + (comm.rank == comm.world_size - 1)
    metric = MulticlassConfusionMatrix(num_classes=classes)
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
    dm.sync_and_compute(metric, comm=comm)


def other_loaders(comm: Any) -> None:
    samples = list(range(4 + (comm.rank == comm.world_size - 1)))
    exact(torch.utils.data.DataLoader(samples), comm=comm)


def other_values(comm: Any) -> None:
    dm.gather_samples([7], torch.tensor([float(comm.rank)]), comm=comm)


CALLS = [shapes, refused, no_weight, other_classes, other_loaders, other_values]


def of_subgroup(comm: Any, call: Any) -> Any:
    """Make a bad call on the ranks 1 and 3."""
    if comm.rank % 2 == 0:
        return None
    return raised(lambda: call(comm.subgroup([1, 3])))


def of_nested(comm: Any, call: Any) -> Any:
    """Make it on ranks 1 and 3, as ranks 0 and 2 of a subgroup of 1, 2 and 3."""
    if comm.rank == 0:
        return None
    ranks = comm.subgroup([1, 2, 3])
    return raised(lambda: call(ranks.subgroup([0, 2]))) if comm.rank != 2 else None


def of_layout(comm: Any, call: Any) -> Any:
    """Make it over the shards of a layout, which are the ranks 1 and 3 for the ranks 1 and 3."""
    return raised(lambda: call(dm.layout({"dp": 2, "tp": 2}, comm=comm, dp="shard", tp="same")))


def check(error: Any, rank: int, call: Any) -> None:
    assert error.rank == rank
    others = {1, 3} if rank % 2 else {0, 2}
    assert set(error.per_rank) <= others
    assert set(error.peers) <= others
    assert set(error.per_rank) | set(error.peers)
    if call in (shapes, refused):
        assert f"rank {max(others)}" in error.what
        assert error.args == (error.what,)


@pytest.mark.parametrize("way", [of_subgroup, of_nested])
def test_of_a_subgroup(way: Any) -> None:
    for call in CALLS:
        errors = run(4, way, call)
        assert errors[0] is errors[2] is None
        for rank in (1, 3):
            check(errors[rank], rank, call)


def test_of_a_layout() -> None:
    for call in CALLS:
        if call is not other_loaders:
            for rank, error in enumerate(run(4, of_layout, call)):
                assert not isinstance(error, dm.LayoutError), call
                check(error, rank, call)


def on_processes(comm: Any) -> list[Any]:
    ways = (of_subgroup, of_nested, of_layout, of_owner)
    return [way(comm, call) for way in ways for call in (shapes, other_classes)]


@pytest.mark.gloo
def test_processes_are_numbered_alike() -> None:
    texts = [[[str(each) for each in rank] for rank in run(4, on_processes, backend=b)] for b in ("threads", "gloo")]
    assert texts[0] == texts[1]


def test_loaders_are_those_of_all_ranks_of_a_layout() -> None:
    """Ranks that hold one shard must draw the same order, so that all of them agree on it."""
    for rank, error in enumerate(run(4, of_layout, other_loaders)):
        assert type(error) is dm.InputError
        assert error.rank == rank
        assert set(error.per_rank) == {0, 1, 2, 3}


def of_owner(comm: Any, call: Any) -> Any:
    ranks = dm.layout({"pp": 2, "dp": 2}, comm=comm, pp="last", dp="shard")
    return raised(lambda: call(ranks))


@pytest.mark.parametrize("call", [shapes, other_classes])
def test_ranks_without_values_are_told_of_those_with_some(call: Any) -> None:
    errors = run(4, of_owner, call)
    for rank, error in enumerate(errors):
        assert error.rank == rank
        assert set(error.per_rank) | set(error.peers) == {2, 3}
        assert str(error) == str(errors[3])


def samples(comm: Any, roles: Any, dealt: str) -> Any:
    """Claim roles for a mesh of the ranks 1 to 4 of 5; return the error of a sync."""
    if comm.rank == 0:
        return None
    ranks = dm.layout({"dp": 2, "tp": 2}, comm=comm.subgroup([1, 2, 3, 4]), **roles)
    metric = CatMetric()
    seed = comm.rank if dealt == "shards" else (comm.rank - 1) // 2
    metric.update(torch.rand(8, generator=torch.Generator().manual_seed(seed)))
    return raised(lambda: dm.sync_and_compute({"scores": metric}, comm=ranks))


def test_a_false_claim_over_a_part_of_the_job() -> None:
    for tp, dealt, what in [
        ("same", "shards", "scores.value differs between ranks 1-2"),
        ("shard", "copies", "ranks 1-2 hold the same data"),
    ]:
        _, *errors = run(5, samples, {"dp": "shard", "tp": tp}, dealt)
        for rank, error in enumerate(errors, 1):
            assert isinstance(error, dm.LayoutError)
            assert what in error.what
            assert (error.rank, error.peers) == (rank, (1, 2))


def test_the_warning_of_copies_names_them() -> None:
    def count(comm: Any) -> None:
        ranks = dm.layout({"a": 2, "b": 2}, comm=comm, a="shard", b="shard")
        flat = comm.subgroup([1, 2]) if comm.rank in (1, 2) else None
        assert ranks.world_size == 4
        if flat is not None:
            metric = CatMetric()
            metric.update(torch.rand(8, generator=torch.Generator().manual_seed(0)))
            dm.sync_and_compute(metric, comm=flat)

    with pytest.warns(dm.RepeatedSamplesWarning, match="ranks 1-2 hold the same data"):
        run(4, count)


def late(comm: Any) -> Any:
    """Make a call over a layout that rank 3 never makes."""
    ranks = dm.layout({"dp": 2, "tp": 2}, comm=comm, dp="shard", tp="same")
    if comm.rank == 3:
        raise RuntimeError("rank 3 is broken")
    loss = MeanMetric()
    loss.update(1.0 + ranks.rank)
    return raised(lambda: dm.sync_and_compute(loss, comm=ranks))


def test_a_rank_that_is_lost() -> None:
    ended = outcomes(4, late)
    assert isinstance(ended[3].error, RuntimeError)
    for rank in range(3):
        error = ended[rank].value or ended[rank].error
        assert isinstance(error, dm.PeerLostError), error
        assert error.peers == (3,)
        assert error.rank == rank
        assert "rank 3" in error.what


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


def leaves_a_call(comm: Any, exchanged: bool, roles: Any) -> list[str]:
    """On the last rank an error of its own ends a call over a layout; it is caught, and the rank goes on."""
    ranks = dm.layout({"dp": 2, "x": 2}, comm=comm, dp="shard", **roles)
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


@pytest.mark.parametrize("roles", [{"x": "same"}, {"x": "last"}, {"x": "shard"}], ids=str)
@pytest.mark.parametrize("exchanged", [False, True])
def test_a_rank_that_left_a_call_over_a_layout_never_gets_a_wrong_value(exchanged: bool, roles: Any) -> None:
    """No rank may take the number of another call, and none waits for ever."""
    for rank, ended in enumerate(outcomes(4, leaves_a_call, exchanged, roles)):
        assert ended.error is None or isinstance(ended.error, dm.DistmetricsError), rank
        told = ended.value or ["DivergedError"]
        factor = 4 if roles["x"] == "shard" else 2
        numbers = {call: text for call, text in enumerate(told) if not text.endswith("Error")}
        assert numbers == {call: str(torch.tensor(float(factor * call), dtype=torch.float64)) for call in numbers}
        assert any(text.endswith("Error") for text in told), (rank, told)
