"""Wrappers, nested in each other and in collections: their children are found, and synced wherever the data lies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection, aggregation, classification, regression, wrappers

from distmetrics import MismatchError, sync_and_compute, synced
from distmetrics.testing import outcomes, run
from tests.backends import both_backends, same_error
from tests.metrics.samples import CLASSES, binary, flat, same, scores, states, two_outputs

# What torchmetrics says of metrics that keep all data, and of wrappers without an update.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Metric `.*` will save all"),
    pytest.mark.filterwarnings("ignore:The ``compute`` method of metric"),
    pytest.mark.filterwarnings("ignore:No positive samples in targets"),
]
TOTAL = 24
CUTS = ([0, 10, TOTAL], [0, 0, TOTAL], [0, TOTAL, TOTAL], [0, 3, 3, TOTAL])


def accuracy(**options: Any) -> Metric:
    return classification.MulticlassAccuracy(CLASSES, **options)


def classwise(kind: Any) -> Metric:
    return wrappers.ClasswiseWrapper(kind(CLASSES, average=None))


class Features(Metric):
    """A metric whose features come from a network that FeatureShare shares."""

    feature_network = "net"
    total: Tensor

    def __init__(self, power: float) -> None:
        super().__init__()
        self.net, self.power = nn.Identity(), power
        self.add_state("total", torch.zeros(2, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("seen", [], dist_reduce_fx="cat")

    def update(self, x: Tensor) -> None:
        features = self.net(x)
        self.total = self.total + (features.double() ** self.power).sum(0)
        self.seen.append(features)  # type: ignore[operator,union-attr]

    def compute(self) -> Tensor:
        seen = self.seen if isinstance(self.seen, Tensor) else torch.cat(self.seen)  # type: ignore[arg-type]
        return self.total / len(seen) + seen[-1]


def tasks() -> Metric:
    inner = {
        "label": MetricCollection({"per class": classwise(classification.MulticlassRecall), "all": accuracy()}),
        "size": wrappers.MultioutputWrapper(regression.PearsonCorrCoef(), 2),
    }
    return wrappers.MultitaskWrapper(inner)


def update_tasks(metric: Any, preds: Tensor, target: Tensor, size: Tensor, wanted: Tensor) -> None:
    metric.update({"label": preds, "size": size}, {"label": target, "size": wanted})


def tracked(metric: Any, *batch: Tensor) -> None:
    if metric.n_steps == 0:
        metric.increment()
    metric.update(*batch)


def both(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return (*scores(n, generator), *two_outputs(n, generator))


class Case(NamedTuple):
    make: Callable[[], Any]
    batch: Any = scores
    update: Any = lambda metric, *batch: metric.update(*batch)
    value: Any = lambda metric: metric.compute()


CASES = {
    "wrappers in a collection": Case(
        lambda: MetricCollection(
            {
                "accuracy": classwise(classification.MulticlassAccuracy),
                "recall": classwise(classification.MulticlassRecall),
            }
        )
    ),
    "wrapper and metrics in one group": Case(
        lambda: MetricCollection(
            {
                "each": classwise(classification.MulticlassAccuracy),
                "precision": classification.MulticlassPrecision(CLASSES),
                "recall": classification.MulticlassRecall(CLASSES),
            }
        )
    ),
    "wrapper last in its group": Case(
        lambda: MetricCollection({"a": accuracy(), "b": classwise(classification.MulticlassF1Score)})
    ),
    "collections in a collection": Case(
        lambda: MetricCollection(
            [
                MetricCollection([accuracy(), classification.MulticlassF1Score(CLASSES)], prefix="one/"),
                MetricCollection([classification.MulticlassAUROC(CLASSES)], postfix="/two"),
            ]
        )
    ),
    "collection and wrappers in tasks": Case(tasks, both, update_tasks),
    "wrapper in a wrapper": Case(
        lambda: wrappers.MultioutputWrapper(wrappers.Running(regression.MeanSquaredError(), window=5), 2), two_outputs
    ),
    "minimum of a composition": Case(
        lambda: wrappers.MinMaxMetric(abs(regression.MeanSquaredError() - 1) ** 0.5),
        lambda n, generator: tuple(x[:, 0] for x in two_outputs(n, generator)),
    ),
    "composition of one metric with itself": Case(lambda: (lambda x: x * x + x)(accuracy())),
    "tracker of a collection": Case(
        lambda: wrappers.MetricTracker(MetricCollection([accuracy(), classwise(classification.MulticlassRecall)])),
        update=tracked,
        value=lambda metric: metric.compute() if metric.n_steps else None,
    ),
    "bootstraps": Case(
        lambda: wrappers.BootStrapper(
            aggregation.SumMetric(), num_bootstraps=3, sampling_strategy="multinomial", raw=True
        ),
        lambda n, generator: (torch.ones(n),),  # whatever is drawn, as many are
        value=lambda metric: metric.compute()["raw"],
    ),
    "transformed input": Case(
        lambda: wrappers.LambdaInputTransformer(classification.BinaryAUROC(), lambda x: 1 - x), binary
    ),
    "shared features": Case(
        lambda: wrappers.FeatureShare({"one": Features(1.0), "two": Features(2.0)}),
        lambda n, generator: two_outputs(n, generator)[:1],
    ),
}


def fed(case: Case, data: tuple[Tensor, ...], start: int, stop: int) -> Any:
    """Up to two batches; none where there is no data."""
    metric = case.make()
    middle = (start + stop) // 2
    for first, last in ((start, middle), (middle, stop)):
        if last > first:
            case.update(metric, *(x[first:last] for x in data))
    return metric


def everything(comm: Any, name: str, cuts: list[int]) -> Any:
    """The value twice; local state must be as before, and the sync must take no more than two collectives."""
    case = CASES[name]
    metric = fed(case, case.batch(TOTAL, torch.Generator().manual_seed(1)), cuts[comm.rank], cuts[comm.rank + 1])
    if name.startswith("tracker") and metric.n_steps == 0:
        metric.increment()
    copied = copy.deepcopy(metric)
    before, values = None, []
    for _ in range(3):  # the first sync lets groups share their state, as any look at it does
        with synced(metric, comm=comm) as plan:
            assert plan is not None
            assert plan.cost.rounds <= 2
            values.append(flat(case.value(metric)))
        assert before is None or same(states(metric), before)
        before = states(metric)
    assert same(values[0], values[1])
    if cuts[comm.rank] < cuts[comm.rank + 1] and not isinstance(metric, wrappers.MinMaxMetric):  # it remembers values
        assert same(flat(case.value(metric)), flat(case.value(copied)))
    return values[0]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_value_is_that_of_one_process(name: str, cuts: list[int]) -> None:
    """With data on all ranks and on some only."""
    case, whole = CASES[name], []
    data = case.batch(TOTAL, torch.Generator().manual_seed(1))
    single = fed(case, data, 0, TOTAL)
    whole = flat(case.value(single))
    for got in run(len(cuts) - 1, everything, name, cuts):
        assert len(got) == len(whole)
        for one, wanted in zip(got, whole, strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-6)


# -- children that some ranks alone have updated


@both_backends
def test_children_that_some_ranks_have_updated(backend: Any) -> None:
    """Each child for itself: a task that came up on one rank, by its own update."""
    assert run(3, one_task_each, backend=backend) == [[1.0, 5.0, 4.0]] * 3


def one_task_each(comm: Any) -> list[float]:
    wrapped = {name: aggregation.MeanMetric() for name in ("a", "b")} | {"c": aggregation.SumMetric()}
    metric = wrappers.MultitaskWrapper(wrapped)  # type: ignore[arg-type]
    if comm.rank < 2:
        wrapped["a" if comm.rank == 0 else "b"].update(1.0 + 4 * comm.rank)
    else:
        wrapped["c"].update(4.0)
    return [float(value) for value in sync_and_compute(metric, comm=comm).values()]


def test_trackers_of_different_length_are_refused() -> None:
    """A rank that skipped an epoch has no such step."""

    def work(comm: Any) -> None:
        tracker = wrappers.MetricTracker(aggregation.SumMetric(), maximize=True)
        for _ in range(1 + (comm.rank == 1)):
            tracker.increment()
            tracker.update(1.0)
        sync_and_compute({"best": tracker}, comm=comm)

    assert same_error(outcomes(3, work), MismatchError).peers == (1,)


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


@pytest.mark.parametrize("inside", [False, True])
def test_the_group_of_a_wrapper_goes_on_after_a_reset(inside: bool) -> None:
    """Groups are kept over a reset, and then only the first of a group is updated: the others must follow."""

    def work(comm: Any) -> Any:
        metrics = MetricCollection({"a": classwise(classification.MulticlassRecall), "b": accuracy(average="micro")})
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
