"""Metrics of every kind of state, and batches for them whose values lie away from cancellation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
import torchmetrics as tm
from torch import Tensor
from torchmetrics import aggregation, classification, regression, retrieval, wrappers
from torchmetrics.image import RootMeanSquaredErrorUsingSlidingWindow
from torchmetrics.segmentation import MeanIoU
from torchmetrics.wrappers.abstract import WrapperMetric

from distmetrics.collectives.buckets import Layout, layout
from distmetrics.metrics import plan

CLASSES = 4


def scores(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Scores on a grid, so that ties occur; multiclass."""
    logits = torch.randint(1, 32, (n, CLASSES), generator=generator) / 32
    return logits / logits.sum(1, keepdim=True), torch.randint(0, CLASSES, (n,), generator=generator)


def binary(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return torch.randint(0, 65, (n,), generator=generator) / 64, torch.randint(0, 2, (n,), generator=generator)


def values(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.randint(16, 160, (n,), generator=generator) / 16,)


def queries(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return (*binary(n, generator), torch.randint(0, 3, (n,), generator=generator))


def two_outputs(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    x = torch.randint(16, 160, (n, 2), generator=generator) / 16
    return x + torch.randint(1, 16, (n, 2), generator=generator) / 16, x


def numbers(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return tuple(x[:, 0] for x in two_outputs(n, generator))


def samplewise(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return tuple(x.unsqueeze(-1).expand(*x.shape, 3) for x in scores(n, generator))


def rows_of_four(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.randint(0, 64, (n, 4), generator=generator) / 64,)


def images(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return tuple(torch.rand(2, n, 3, 16, 16, generator=generator))


def masks(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return tuple(torch.randint(0, 2, (2, n, 3, 8, 8), generator=generator))


class Items(tm.Metric):
    """List state without a reduction."""

    items: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("items", [], dist_reduce_fx=None)

    def update(self, x: Tensor) -> None:
        self.items.append(x)

    def compute(self) -> tuple[int, Tensor]:
        return sum(item.numel() for item in self.items), torch.stack([item.sum() for item in self.items]).sum()


class Product(tm.Metric):
    """A tensor state with a reduction of the metric's own."""

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        one = torch.tensor(1.0, dtype=torch.float64)
        self.add_state("value", one, dist_reduce_fx=lambda rows: rows.prod(0))

    def update(self, x: Tensor) -> None:
        self.value = self.value * (1 + x.double() / 100).prod()

    def compute(self) -> Tensor:
        return self.value


class Extremes(tm.Metric):
    """Maximum, minimum, sum and a flag, of several dtypes, in one metric."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("high", torch.tensor(-(2**31)), dist_reduce_fx="max")
        self.add_state("low", torch.tensor(float("inf")), dist_reduce_fx="min")
        self.add_state("count", torch.tensor(0, dtype=torch.int32), dist_reduce_fx="sum")
        self.add_state("any", torch.tensor(False), dist_reduce_fx="max")

    def update(self, x: Tensor) -> None:
        self.high = torch.maximum(self.high, (x * 16).long().max())  # type: ignore[has-type]
        self.low = torch.minimum(self.low, x.min())  # type: ignore[has-type]
        self.count += x.numel()  # type: ignore[misc,operator]
        self.any |= (x > 9.5).any()  # type: ignore[misc,operator]

    def compute(self) -> tuple[Any, ...]:
        return self.high, self.low, self.count, self.any


class Own(tm.Metric):
    """Sets an attribute that is no state, in a method that ``update`` calls; a state beside it."""

    width: int
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.note: Any = print

    def _see(self, x: Tensor) -> None:
        self.width = x.shape[1]

    def update(self, x: Tensor) -> None:
        self._see(x)
        self.total += x.sum()

    def compute(self) -> Tensor:
        return self.total / self.width


class Large(Own):
    """A tensor as an attribute too, in a subclass; and one that no rank can send, and computing never reads."""

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.note = lambda: x  # distlint: ignore[DL005] it must not be sendable
        if not hasattr(self, "scale"):
            self.scale = torch.arange(400.0) + x.shape[1]

    def compute(self) -> Tensor:
        return super().compute() * self.scale.sum()


class Sample(NamedTuple):
    make: Callable[[], Any]
    batch: Callable[[int, torch.Generator], tuple[Tensor, ...]]
    rounds: int = 1  # 2 with states that grow with the data, where they do not ride along
    shares: bool = False  # its state with wrappers, from the first sync, or look, on
    lends: bool = False  # attributes that an update sets, to ranks without data: one round more


def collection(groups: bool) -> tm.MetricCollection:
    made = {
        "accuracy": classification.MulticlassAccuracy(CLASSES),
        "precision": classification.MulticlassPrecision(CLASSES),
        "f1": classification.MulticlassF1Score(CLASSES, average="micro"),
        "confusion": classification.MulticlassConfusionMatrix(CLASSES),
    }
    return tm.MetricCollection(made, compute_groups=groups)


def in_a_group() -> tm.MetricCollection:
    each = wrappers.ClasswiseWrapper(classification.MulticlassAccuracy(CLASSES, average=None))
    kinds = classification.MulticlassPrecision, classification.MulticlassRecall
    return tm.MetricCollection([each, *[kind(CLASSES) for kind in kinds]])


def squared() -> tm.Metric:
    metric = regression.MeanSquaredError()
    return metric * metric + metric


def nested() -> tm.MetricCollection:
    counts = [classification.MulticlassAccuracy(CLASSES), classification.MulticlassF1Score(CLASSES)]
    lists = [classification.MulticlassAUROC(CLASSES)]
    return tm.MetricCollection([tm.MetricCollection(counts, prefix="one/"), tm.MetricCollection(lists, postfix="/two")])


def lowest() -> wrappers.MinMaxMetric:
    return wrappers.MinMaxMetric(abs(regression.MeanSquaredError() - 1) ** 0.5)


SAMPLES: dict[str, Sample] = {
    "SumMetric": Sample(aggregation.SumMetric, values),
    "MeanMetric": Sample(aggregation.MeanMetric, values),
    "CatMetric": Sample(aggregation.CatMetric, values, 2),
    "MulticlassAUROC binned": Sample(lambda: classification.MulticlassAUROC(CLASSES, thresholds=9), scores),
    "MulticlassAveragePrecision": Sample(lambda: classification.MulticlassAveragePrecision(CLASSES), scores, 2),
    "MulticlassAccuracy": Sample(
        lambda: classification.MulticlassAccuracy(CLASSES, multidim_average="samplewise"), samplewise, 2
    ),
    "BinaryPrecisionRecallCurve": Sample(classification.BinaryPrecisionRecallCurve, binary, 2),
    "MeanAbsoluteError": Sample(lambda: regression.MeanAbsoluteError(num_outputs=2), two_outputs),
    "R2Score": Sample(regression.R2Score, numbers),
    "PearsonCorrCoef": Sample(regression.PearsonCorrCoef, numbers),
    "RetrievalMAP": Sample(retrieval.RetrievalMAP, queries, 2),
    "MinMaxMetric": Sample(lambda: wrappers.MinMaxMetric(classification.BinaryAccuracy()), binary),
    "composition": Sample(lambda: regression.MeanSquaredError() + 2 * regression.MeanAbsoluteError(), numbers),
    "composition of one with itself": Sample(squared, numbers),
    "wrapper of a composition": Sample(lowest, numbers),
    "wrapper in a group": Sample(in_a_group, scores, shares=True),
    "collections in a collection": Sample(nested, scores, 2),
    "collection with groups": Sample(lambda: collection(True), scores),
    "collection without groups": Sample(lambda: collection(False), scores),
    "list without reduction": Sample(Items, values, 2),
    "reduction of its own": Sample(Product, values),
    "several reductions": Sample(Extremes, values),
    "a sum that is no state": Sample(RootMeanSquaredErrorUsingSlidingWindow, images),
    "MeanIoU of each class": Sample(lambda: MeanIoU(per_class=True), masks, lends=True),
    "own attributes": Sample(
        lambda: tm.MetricCollection({"a": Own(), "b": Large()}, compute_groups=False), rows_of_four, lends=True
    ),
}


@contextmanager
def lists_follow() -> Iterator[None]:
    """Send lists in a round of their own, as long ones are, however short they are; for all threads."""

    def padded(tensors: Any, kinds: Any) -> Layout:
        where = layout(tensors, kinds)
        has_lists = not {*kinds} <= {*plan.FIXED}
        return where._replace(nbytes=where.nbytes + (1 << 15)) if has_lists else where

    plan.plan.cache_clear()
    plan.sent_by.cache_clear()
    try:
        with mock.patch.object(plan, "layout", padded):
            yield
    finally:
        plan.plan.cache_clear()
        plan.sent_by.cache_clear()


def flat(value: Any) -> list[Tensor]:
    """All numbers of a result, whatever its form."""
    if isinstance(value, dict):
        return [x for key in sorted(value) for x in flat(value[key])]
    if isinstance(value, list | tuple):
        return [x for item in value for x in flat(item)]
    return [torch.as_tensor(value)]


def states(metrics: Any) -> list[Any]:
    """All that every metric in a module holds, states, flags and attributes, to be compared bit for bit."""
    found: list[Any] = []
    for module in metrics.modules():
        if isinstance(module, tm.MetricCollection):
            found.append((repr(module._groups), module._state_is_copy))
        elif isinstance(module, WrapperMetric):  # some change attributes of theirs as they compute
            found.append({name: _frozen(getattr(module, name)) for name in (*module._defaults, "_is_synced")})
        elif isinstance(module, tm.Metric):
            found.append(_frozen(vars(module)))
    return found


def _frozen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape), value.detach().numpy().tobytes()
    if isinstance(value, list | tuple):
        return [_frozen(item) for item in value]
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return value


def same(one: Any, other: Any) -> bool:
    """Bitwise."""
    if isinstance(one, Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def batches(sample: Sample, total: int, seed: int) -> tuple[Tensor, ...]:
    return sample.batch(total, torch.Generator().manual_seed(seed))


def shard(data: tuple[Tensor, ...], cuts: list[int], rank: int) -> tuple[Tensor, ...]:
    """Rank ``rank``'s rows: from one cut to the next."""
    return tuple(x[cuts[rank] : cuts[rank + 1]] for x in data)


def updated(metric: Any, *batches: Any) -> Any:
    for batch in batches:
        metric.update(*batch) if isinstance(batch, tuple) else metric.update(batch)
    return metric
