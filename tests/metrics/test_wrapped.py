"""Wrappers and groups, nested in each other: what is in them is found, and synced once, wherever the data lies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import CatMetric, MeanMetric, Metric, MetricCollection, SumMetric, classification, wrappers
from torchmetrics.regression import NormalizedRootMeanSquaredError

from distmetrics import StateError, sync_and_compute, synced
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.metrics.samples import CLASSES, collection, flat, same, scores, updated


def test_children_that_some_ranks_have_updated_and_all_steps_of_a_tracker() -> None:
    """Each child for itself, by its own update; steps also that were updated before an earlier sync."""

    def work(comm: Any) -> Any:
        wrapped = {"a": MeanMetric(), "b": MeanMetric(), "c": SumMetric()}
        metric = wrappers.MultitaskWrapper(wrapped)  # type: ignore[arg-type]
        wrapped["abc"[comm.rank]].update([1.0, 5.0, 4.0][comm.rank])
        assert sync_and_compute(metric, comm=comm) == {"a": 1.0, "b": 5.0, "c": 4.0}
        tracker = wrappers.MetricTracker(SumMetric(), maximize=True)
        for value in (5.0, 1.0):
            tracker.increment()
            tracker.update(value + comm.rank)
            sync_and_compute(tracker, comm=comm)
        with synced(tracker, comm=comm):
            return tracker.compute_all().tolist(), tracker.best_metric(return_step=True)

    assert run(3, work) == [([18.0, 6.0], (18.0, 0))] * 3


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
@pytest.mark.parametrize("inside", [False, True])
def test_the_group_of_a_wrapper_goes_on_after_a_reset(inside: bool) -> None:
    """Groups are kept over a reset, and then only the first of a group is updated: the others must follow."""

    def work(comm: Any) -> Any:
        recall = classification.MulticlassRecall(CLASSES, average=None)
        accuracy = classification.MulticlassAccuracy(CLASSES, average="micro")
        metrics = MetricCollection({"a": wrappers.ClasswiseWrapper(recall), "b": accuracy})
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


def test_members_of_a_group_travel_once() -> None:
    """They share their state, so sending it for each would be waste; without groups it is sent for each."""

    def work(comm: Any) -> None:
        sizes = []
        for groups in (True, False):
            metrics = updated(collection(groups), scores(8, torch.Generator().manual_seed(comm.rank)))
            with synced(metrics, comm=comm) as plan:
                assert plan is not None
                sizes.append(plan.sent[comm.rank].inline.layout.nbytes)
        assert sizes[0] < sizes[1]

    run(2, work)


@pytest.mark.parametrize(("count", "long"), [(500, 0), (20, 10_000)])
def test_rounds_do_not_depend_on_the_number_of_metrics(count: int, long: int) -> None:
    """One, and one more with long lists; of 500 metrics the header fits into the first round only compressed."""

    def work(comm: Any) -> tuple[int, list[float]]:
        kind: Any = CatMetric if long else SumMetric
        metrics = [updated(kind(), torch.full((long or 1,), float(index + comm.rank))) for index in range(count)]
        record = RecordingCommunicator(comm)
        values = sync_and_compute(metrics, comm=record)
        return len(record.calls), [float(value.sum()) for value in values]

    wanted = [float((2 * index + 1) * (long or 1)) for index in range(count)]
    assert run(2, work) == [(2 if long else 1, wanted)] * 2


def test_a_metric_that_cannot_merge_three_ranks_says_so() -> None:
    """torchmetrics' own fault, named on every rank; two ranks are right, and so are three of which one has no data."""
    target = torch.arange(12.0)

    def work(comm: Any, cuts: list[int]) -> torch.Tensor:
        metric, part = NormalizedRootMeanSquaredError("std"), slice(cuts[comm.rank], cuts[comm.rank + 1])
        if part.start < part.stop:
            metric.update(target[part] + 0.5, target[part])
        return sync_and_compute(metric, comm=comm)  # type: ignore[no-any-return]

    single = updated(NormalizedRootMeanSquaredError("std"), (target + 0.5, target))
    for cuts in ([0, 5, 12], [0, 5, 5, 12]):
        for value in run(len(cuts) - 1, work, cuts):
            torch.testing.assert_close(value, single.compute(), rtol=1e-5, atol=1e-6)
    for ended in outcomes(3, work, [0, 3, 7, 12]):
        assert type(ended.error) is StateError
        assert "cannot merge the data of 3 ranks" in str(ended.error)
