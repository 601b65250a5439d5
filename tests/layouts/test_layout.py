"""Collectives and metrics over a mesh give the number of one process over all samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import BinaryAUROC

import distmetrics as dm
from benchmarks.parallel_lm import MESHES as PARALLEL
from benchmarks.parallel_lm import alone
from distmetrics.layouts.mesh import Mesh
from distmetrics.layouts.proof import Proof, share
from distmetrics.testing import outcomes, run
from tests.layouts.processes import on_four_processes
from tests.layouts.test_meshes import on_a_device_mesh

ROLES = ("shard", "same", "first", "last")


def samples_of(shard: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and labels of a shard: of another length in each."""
    generator = torch.Generator().manual_seed(shard)
    scores = torch.rand(3 + shard, generator=generator)
    labels = torch.arange(3 + shard) % 2
    return scores, labels


def metrics_of(shards: list[int]) -> dict[str, Any]:
    """Return metrics that have seen some shards."""
    metrics = {"sum": SumMetric(), "mean": MeanMetric(), "auroc": BinaryAUROC()}
    for shard in shards:
        scores, labels = samples_of(shard)
        metrics["sum"].update(scores)
        metrics["mean"].update(scores)
        metrics["auroc"].update(scores, labels)
    return metrics


def computed(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: metric.compute() for name, metric in metrics.items()}


def evaluate(comm: Any, sizes: dict[str, int], roles: dict[str, str]) -> Any:
    """Evaluate on one rank of a mesh; ranks without values have none, or nonsense."""
    over = dm.layout(sizes, comm=comm, **roles)
    has_values = over.mesh.owns(comm.rank)
    metrics = metrics_of([over.rank]) if has_values else metrics_of([99])
    values = dm.sync_and_compute(metrics if has_values else None, comm=over)
    scores, _ = samples_of(over.rank)
    loss = scores.mean() if has_values else "no loss"
    weight = len(scores) if has_values else -1
    mean = dm.mean(loss, weight=weight, comm=over)
    with dm.synced(metrics, comm=over):
        inside = computed(metrics)
    after = computed(metrics)
    everything = dm.all_gather_cat(scores if has_values else (), comm=over)
    return over.world_size, values, mean, inside, after, everything


def check(results: list[Any], sizes: dict[str, int], roles: dict[str, str]) -> None:
    shards = 1
    for axis, size in sizes.items():
        shards *= size if roles[axis] == "shard" else 1
    expected = computed(metrics_of([*range(shards)]))
    everything = torch.cat([samples_of(shard)[0] for shard in range(shards)])
    for world_size, values, mean, inside, _, gathered in results:
        assert world_size == shards
        torch.testing.assert_close(values, expected)
        torch.testing.assert_close(inside, expected)
        torch.testing.assert_close(mean, everything.mean())
        torch.testing.assert_close(gathered, everything)


MESHES = [{"dp": 2, "tp": 2}, {"tp": 2, "dp": 3}]


def on_processes(comm: Any) -> Any:
    """Some ranks are in more groups than others when the layout is made; torch names groups by that."""
    if comm.rank in (1, 3):
        torch.distributed.new_group([1, 3], use_local_synchronization=True)
    roles = {"pp": "last", "tp": "same"}
    found = [evaluate(comm, sizes, roles) for sizes in ({"pp": 2, "tp": 2}, {"tp": 2, "pp": 2})]
    sizes, shards = {"dp": 2, "tp": 2}, {"dp": "shard", "tp": "shard"}
    false = claim(comm, sizes, shards, {"dp": "shard", "tp": "same"}, "sync")
    return *found, evaluate(comm, sizes, shards), str(false), on_a_device_mesh(comm)


@on_four_processes
def test_on_processes(four_processes: list[Any]) -> None:
    results = [each["layouts"] for each in four_processes]
    for place, sizes in enumerate([{"pp": 2, "tp": 2}, {"tp": 2, "pp": 2}]):
        check([each[place] for each in results], sizes, {"pp": "last", "tp": "same"})
    check([each[2] for each in results], {"dp": 2, "tp": 2}, {"dp": "shard", "tp": "shard"})
    for rank, (*_, text, on_mesh) in enumerate(results):
        assert text == results[0][3]
        assert "along the axis tp" in text
        assert on_mesh == [[0, 1], [2, 3], [0, 1], 2.0 + 2 * (rank % 2)]


@settings(max_examples=40)
@given(st.data())
def test_any_mesh(data: st.DataObject) -> None:
    axes = data.draw(st.integers(1, 4))
    sizes = {f"axis{place}": data.draw(st.integers(1, 3)) for place in range(axes)}
    roles = {axis: data.draw(st.sampled_from(ROLES)) for axis in sizes}
    world_size = int(torch.tensor([*sizes.values()]).prod())
    results = run(world_size, evaluate, sizes, roles)
    check(results, sizes, roles)
    for rank, result in enumerate(results):
        if not Mesh.of(sizes, roles).owns(rank):  # local state is back
            torch.testing.assert_close(result[4], computed(metrics_of([99])))


def claim(comm: Any, sizes: dict[str, int], true: Any, claimed: Any, kind: str) -> Any:
    """Make a call under a claim, on data that is dealt out in another way."""
    shard = dm.layout(sizes, comm=comm, **true).rank
    over = dm.layout(sizes, comm=comm, **claimed)
    scores, _ = samples_of(shard)
    try:
        if kind == "mean":
            return dm.mean(scores.mean(), weight=len(scores), comm=over)
        if kind == "lists":
            return dm.sync_and_compute(metrics_of([shard])["auroc"], comm=over)
        if kind == "sync":
            return dm.sync_and_compute(metrics_of([shard])["mean"], comm=over)
        return dm.all_gather_object([*map(float, scores)], comm=over)
    except dm.LayoutError as error:
        return error


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_false_claims_are_seen(sizes: Any) -> None:
    """Of shards said to be the same in any call; of the same said to be shards where it cannot be by chance."""
    shards = dict.fromkeys(sizes, "shard")
    ranks = int(torch.tensor([*sizes.values()]).prod())
    for axis in sizes:
        same = shards | {axis: "same"}
        for kind, true, claimed in [
            *((kind, shards, same) for kind in ("mean", "sync", "objects")),
            ("lists", same, shards),
        ]:
            texts = {str(error) for error in run(ranks, claim, sizes, true, claimed, kind)}
            assert all(f"along the axis {axis}," in text for text in texts)
            assert kind != "lists" or all("said to be of" in text for text in texts)


def test_the_same_that_is_said_to_be_shards_beside_others_that_are_the_same() -> None:
    """Each tensor-parallel rank finds copies among shards of its own, and all tell of the same ones."""
    sizes = {"dp": 2, "tp": 2}
    true, claimed = dict.fromkeys(sizes, "same"), {"dp": "shard", "tp": "same"}
    results = run(4, claim, sizes, true, claimed, "lists")
    assert {str(result).partition("\n")[0] for result in results} == {
        'along the axis dp, said to be of "shard"s, ranks 0, 2 hold the same data: it would be counted 2 times'
    }


@given(st.lists(st.sampled_from(["a", "b"]), min_size=6, max_size=6))
def test_shares_sum_to_zero_only_if_the_same_ranks_have_the_same(held: list[str]) -> None:
    """Also where two groups differ in the same two ways."""
    mesh = Mesh.of({"dp": 2, "tp": 3}, {"dp": "shard", "tp": "same"})
    shares = [share(mesh, rank, Proof({"state": text})) for rank, text in enumerate(held)]
    assert bool(sum(shares).any()) is not (len({*held[:3]}) == len({*held[3:]}) == 1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("where", "kind"), [((0, 1, 2, 3), dm.InputError), ((0,), dm.LayoutError), ((3,), dm.LayoutError)]
)
def test_an_error_of_some_ranks_is_one_of_all_and_one_of_all_is_raised_as_it_is(where: Any, kind: Any) -> None:
    def work(comm: Any) -> None:
        over = dm.layout({"dp": 2, "tp": 2}, comm=comm, dp="shard", tp="same")
        dm.mean(1.0, weight=-1 if comm.rank in where else 1, comm=over)

    for outcome in outcomes(4, work):
        assert type(outcome.error) is kind
        assert "the weight is -1" in str(outcome.error)


class OwnError(dm.InputError):
    """Of the user's."""


@pytest.mark.parametrize(
    ("kind", "told", "text"),
    [(ZeroDivisionError, dm.StateError, "ZeroDivisionError: of computing"), (OwnError, dm.InputError, "of computing")],
)
def test_what_computing_raises_is_told_to_ranks_without_values(kind: Any, told: Any, text: str) -> None:
    """An error of the user's own class as ours that it extends."""

    def compute(sums: Any) -> Any:
        raise kind("of computing")

    def work(comm: Any) -> None:
        metric = dm.from_function(compute, reduce={"n": "sum"})
        metric.update(n=1)
        dm.sync_and_compute(metric, comm=dm.layout({"dp": 2, "pp": 2}, comm=comm, dp="shard", pp="last"))

    ended = outcomes(4, work)
    assert [type(outcome.error) for outcome in ended] == [told, kind] * 2
    assert text in str(ended[0].error)


@on_four_processes
def test_the_numbers_of_one_process_and_what_is_logged_without_a_layout(four_processes: list[Any]) -> None:
    """Which differs in every mesh by more than rounding."""
    for place, mesh in enumerate(PARALLEL[4]):
        for rank in four_processes:
            result = rank["language model"][place]
            assert result["ours"] == pytest.approx(alone(), rel=1e-6), mesh  # perplexity is kept in float32
            assert result["ours"]["tokens"] == alone()["tokens"]
        assert abs(four_processes[0]["language model"][place]["naive"]["loss"] - alone()["loss"]) > 1e-3
