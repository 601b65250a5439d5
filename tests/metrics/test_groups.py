"""Metrics made with a process group of their own are synced in it; what cannot be meant is refused, never guessed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchmetrics import Metric, MetricCollection, aggregation, classification, wrappers

from distmetrics import ConfigurationError, GroupCommunicator, StateError, sync_and_compute, synced
from distmetrics.testing import outcomes, run
from tests.backends import same_error
from tests.metrics.samples import states

pytestmark = pytest.mark.gloo
PAIRS = ([0, 1], [2, 3])


def pair(comm: Any) -> Any:
    """This rank's half of a world of four; every rank makes both, as torch wants."""
    return [dist.new_group(ranks) for ranks in PAIRS][comm.rank // 2]


def summed(value: float, **options: Any) -> Any:
    metric = aggregation.SumMetric(**options)
    metric.update(value)
    return metric


def labels(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.rand(6, generator=generator), torch.randint(0, 2, (6,), generator=generator)


def many(group: Any) -> MetricCollection:
    """Counts and lists, in compute groups."""
    kinds = classification.BinaryF1Score, classification.BinaryPrecision, classification.BinaryAUROC
    return MetricCollection([kind(process_group=group) for kind in kinds])


def in_pairs(comm: Any) -> Any:
    """Every way to name a group, one after another: all stay in step."""
    group, value = pair(comm), float(10**comm.rank)
    wrapped = wrappers.MinMaxMetric(summed(value, process_group=group))
    collection = many(group)
    collection.update(*labels(comm.rank))
    metric = summed(value, process_group=group)
    with synced([metric]) as plan:
        assert plan is not None
        ranks = len(plan.sent)
    return (
        [
            float(sync_and_compute(metric)),
            float(sync_and_compute({"a": summed(value, process_group=group), "b": metric})["a"]),
            float(sync_and_compute(summed(value), comm=GroupCommunicator.of(group))),
        ],
        [
            float(sync_and_compute(summed(value))),
            float(sync_and_compute(metric, comm=comm)),  # the argument overrules
            float(sync_and_compute([summed(value, process_group=dist.group.WORLD), summed(value)])[0]),
        ],
        sync_and_compute(collection),
        float(sync_and_compute(wrapped)["raw"]),
        ranks,
    )


def test_a_metric_is_synced_in_its_own_group() -> None:
    """Two pairs at once; wrappers and collections of such metrics too; the whole world before and after."""
    for rank, (own, world, values, wrapped, ranks) in enumerate(run(4, in_pairs, backend="gloo")):
        members = PAIRS[rank // 2]
        whole = many(None)
        for member in members:
            whole.update(*labels(member))
        total = float(sum(10**member for member in members))
        assert (own, world, ranks) == ([total] * 3, [1111.0] * 3, 2)
        assert wrapped == total
        assert {name: float(value) for name, value in values.items()} == pytest.approx(
            {name: float(value) for name, value in whole.compute().items()}
        )


class Scaled(Metric):
    """A metric with states around a metric."""

    total: torch.Tensor

    def __init__(self, inner: Metric) -> None:
        super().__init__()
        self.inner = inner
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, x: float) -> None:
        self.total = self.total + x
        self.inner.update(x)

    def compute(self) -> Any:
        return self.total / self.inner.compute()


def mixtures(comm: Any) -> dict[str, Any]:
    group = pair(comm)
    third = dist.new_group(list(range(4)))
    return {
        "with all ranks": [summed(1.0, process_group=group), summed(1.0)],
        "equal ranks, other group": [summed(1.0, process_group=third), summed(1.0)],
        "inside and outside": Scaled(summed(1.0, process_group=group)),
    }


def mixed(comm: Any, name: str) -> None:
    metrics = mixtures(comm)[name]
    modules = nn.ModuleList(metrics if isinstance(metrics, list) else [metrics])
    before = repr(states(modules))
    try:
        sync_and_compute(metrics)
    finally:
        assert repr(states(modules)) == before


@pytest.mark.parametrize("name", ["with all ranks", "equal ranks, other group", "inside and outside"])
def test_metrics_of_different_groups_are_refused_together(name: str) -> None:
    """On every rank, with the metrics' names; one sync talks in one group."""
    text = str(same_error(outcomes(4, mixed, name, backend="gloo"), StateError))
    assert "were made for different process groups" in text
    assert "in a call of their own" in text


def outside(comm: Any) -> Any:
    """Ranks 2 and 3 are not in the group; they are told, and the members do not wait for them."""
    group = dist.new_group([0, 1])
    metric = summed(1.0 + comm.rank, process_group=group)
    try:
        value = float(sync_and_compute({"loss": metric})["loss"])
    except ConfigurationError as error:
        value = str(error)  # type: ignore[assignment]
    return value, float(sync_and_compute(metric, comm=comm))


def test_a_rank_outside_the_group_is_told() -> None:
    """It has no value of that group; torchmetrics' own sync goes on with an empty list."""
    got = run(4, outside, backend="gloo")
    assert got[:2] == [(3.0, 10.0)] * 2
    for text, value in got[2:]:
        assert text.startswith("the metric loss was made for a process group that this rank is not in")
        assert value == 10.0


def no_group(comm: Any) -> None:
    sync_and_compute(summed(1.0, process_group="data parallel"))


def test_what_is_no_group_is_refused() -> None:
    """torchmetrics takes anything as ``process_group``, for a ``dist_sync_fn`` of the user's."""
    for outcome in outcomes(2, no_group, backend="gloo"):
        assert isinstance(outcome.error, ConfigurationError)
        assert "that is none of torch.distributed: 'data parallel'" in str(outcome.error)
