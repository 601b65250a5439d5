"""Metrics made with a process group of their own are synced in it; what cannot be meant is refused, never guessed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchmetrics import Metric, MetricCollection, aggregation, classification, wrappers

from distmetrics import ConfigurationError, GroupCommunicator, StateError, sync_and_compute, synced
from distmetrics.testing import run
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
    """Every way to name a group, and to name what is none, one after another: all stay in step."""
    group, value = pair(comm), float(10**comm.rank)
    collection = many(group)
    collection.update(*labels(comm.rank))
    metric = summed(value, process_group=group)
    with synced([metric]) as plan:
        assert plan is not None
        assert len(plan.sent) == 2
    own = [
        sync_and_compute(metric),
        sync_and_compute({"a": summed(value, process_group=group), "b": metric})["a"],
        sync_and_compute(wrappers.MinMaxMetric(metric))["raw"],
        sync_and_compute(summed(value), comm=GroupCommunicator.of(group)),
    ]
    world = [
        sync_and_compute(summed(value)),
        sync_and_compute(metric, comm=comm),  # the argument overrules
        sync_and_compute([summed(value, process_group=dist.group.WORLD), summed(value)])[0],
    ]
    return own, world, sync_and_compute(collection), [refused(comm, *each) for each in mixtures(group)]


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


def mixtures(group: Any) -> list[Any]:
    """Metrics of different groups, which one sync does not talk in; what torch knows no group by."""
    third, told = dist.new_group(list(range(4))), "were made for different process groups"
    return [
        (StateError, told, [summed(1.0, process_group=group), summed(1.0)]),
        (StateError, told, [summed(1.0, process_group=third), summed(1.0)]),
        (StateError, told, [Scaled(summed(1.0, process_group=group))]),
        (ConfigurationError, "none of torch.distributed: 'data'", [summed(1.0, process_group="data")]),
    ]


def refused(comm: Any, kind: type[Exception], text: str, metrics: list[Any]) -> str:
    before = repr(states(nn.ModuleList(metrics)))
    with pytest.raises(kind) as caught:
        sync_and_compute(metrics)
    assert repr(states(nn.ModuleList(metrics))) == before
    assert text in str(caught.value)
    return str(caught.value)


def test_a_metric_is_synced_in_its_own_group() -> None:
    """Two pairs at once; wrappers and collections of such metrics too; the whole world before and after."""
    ended = run(4, in_pairs, backend="gloo")
    for rank, (own, world, values, texts) in enumerate(ended):
        members = PAIRS[rank // 2]
        whole = many(None)
        for member in members:
            whole.update(*labels(member))
        assert (own, world) == ([sum(10**member for member in members)] * 4, [1111.0] * 3)
        assert {name: float(value) for name, value in values.items()} == pytest.approx(
            {name: float(value) for name, value in whole.compute().items()}
        )
        assert texts == ended[0][-1]
