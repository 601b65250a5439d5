"""Wrappers, nested in each other and in collections: their children are found, and synced wherever the data lies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection, aggregation, classification, wrappers

from distmetrics import sync_and_compute, synced
from distmetrics.testing import run
from tests.metrics.samples import CLASSES, flat, same, scores


def test_children_that_some_ranks_have_updated() -> None:
    """Each child for itself: a task that came up on one rank, by its own update."""
    assert run(3, one_task_each) == [[1.0, 5.0, 4.0]] * 3


def one_task_each(comm: Any) -> list[float]:
    wrapped = {name: aggregation.MeanMetric() for name in ("a", "b")} | {"c": aggregation.SumMetric()}
    metric = wrappers.MultitaskWrapper(wrapped)  # type: ignore[arg-type]
    if comm.rank < 2:
        wrapped["a" if comm.rank == 0 else "b"].update(1.0 + 4 * comm.rank)
    else:
        wrapped["c"].update(4.0)
    return [float(value) for value in sync_and_compute(metric, comm=comm).values()]


def test_all_steps_of_a_tracker() -> None:
    """Also those that were updated before an earlier sync."""

    def work(comm: Any) -> Any:
        tracker = wrappers.MetricTracker(aggregation.SumMetric(), maximize=True)
        for value in (5.0, 1.0):
            tracker.increment()
            tracker.update(value + comm.rank)
            sync_and_compute(tracker, comm=comm)
        with synced(tracker, comm=comm):
            return tracker.compute_all().tolist(), tracker.best_metric(return_step=True)

    assert run(2, work) == [([11.0, 3.0], (11.0, 0))] * 2


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
@pytest.mark.parametrize("inside", [False, True])
def test_the_group_of_a_wrapper_goes_on_after_a_reset(inside: bool) -> None:
    """Groups are kept over a reset, and then only the first of a group is updated: the others must follow."""

    def work(comm: Any) -> Any:
        metrics = MetricCollection(
            {
                "a": wrappers.ClasswiseWrapper(classification.MulticlassRecall(CLASSES, average=None)),
                "b": classification.MulticlassAccuracy(CLASSES, average="micro"),
            }
        )
        generator = torch.Generator().manual_seed(comm.rank)
        metrics.update(*scores(8, generator))
        with synced(metrics, comm=comm):
            metrics.compute()
            if inside:
                metrics.reset()
        if not inside:
            metrics.reset()
        if comm.rank:
            metrics.update(*scores(8, generator))
        return flat(sync_and_compute(metrics, comm=comm)), flat(metrics.compute())

    (zero, _), (one, alone) = run(2, work)  # rank 0 has no data after the reset
    assert same(zero, one)
    assert same(one, alone)


class Tally(Metric):
    """A metric that puts a new tensor in place of its state, where most add to the one that a group shares."""

    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("counts", torch.zeros(2), dist_reduce_fx="sum")

    def update(self, x: Tensor) -> None:
        self.counts = self.counts + x

    def compute(self) -> Tensor:
        return self.counts


@pytest.mark.parametrize("turned", [False, True])
def test_a_wrapper_in_a_group_counts_what_the_group_saw(turned: bool) -> None:
    """Only the first of a group is updated; torchmetrics tells its count to a wrapper, but not to the metric inside."""

    def work(comm: Any) -> Any:
        made = [Tally(), wrappers.ClasswiseWrapper(Tally(), prefix="of ")]
        metrics = MetricCollection(dict(zip("ab", reversed(made) if turned else made, strict=True)))
        for _ in range(3):
            metrics.update(torch.tensor([1.0, 2.0]) * (1 + comm.rank))
        with synced(metrics, comm=comm):
            counts = [part._update_count for part in metrics.modules() if isinstance(part, Tally)]
            return counts, {name: value.tolist() for name, value in metrics.compute().items()}

    assert run(2, work) == [([6, 6], {"ba"[not turned]: [9.0, 18.0], "of 0": 9.0, "of 1": 18.0})] * 2
