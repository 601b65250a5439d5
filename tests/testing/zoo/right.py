"""Metrics that keep the laws: toy ones of every kind, and some of torchmetrics and torcheval."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
import torchmetrics as tm
from torch import Tensor
from torchmetrics import classification, clustering, regression, retrieval, segmentation, text, wrappers

from distmetrics import all_gather_cat, all_reduce, from_function, mean
from distmetrics.testing import function, inputs, laws
from distmetrics.testing.laws import Laws
from tests.testing.zoo.base import Mergeable, Specimen, Total
from tests.testing.zoo.mutants import indexed, total_of

OF_BATCHES = "what it is updated with is of a batch, and not of samples"
INTEGERS = laws.DEFAULT | laws.WORLD_SIZE | laws.LARGE_COUNTS  # the value follows from counts alone


def ordered(chosen: Laws = laws.DEFAULT) -> Laws:
    why = "the value is in order of the samples"
    return chosen.off(laws.RANK_ORDER, because=why).off(laws.SAMPLE_ORDER, because=why)


class Ordered(Total):
    """All numbers, in order."""

    more: ClassVar = {"seen": ([], "cat")}
    seen: list[Tensor]

    def update(self, x: Tensor) -> None:
        self.seen.append(x)

    def compute(self) -> Tensor:
        return torch.cat(self.seen) if isinstance(self.seen, list) and self.seen else torch.as_tensor(self.seen)


class BatchTotals(Ordered):
    """The sum of each batch, in order: a list state without a reduction."""

    more: ClassVar = {"seen": ([], None)}

    def update(self, x: Tensor) -> None:
        if x.numel():
            self.seen.append(x.sum())

    def compute(self) -> list[Tensor]:
        return list(self.seen)


class Lazy(Mergeable):
    """Sums by column; how many there are is known from the first batch on."""

    sums: Tensor | None

    def update(self, x: Tensor, y: Tensor) -> None:
        added = torch.cat([x, y], dim=1).double().sum(0)
        self.sums = added if self.sums is None else self.sums + added

    def merge_state(self, others: Sequence[Lazy]) -> None:
        found = [each.sums for each in (self, *others) if each.sums is not None]
        self.sums = torch.stack(found).sum(0) if found else None

    def compute(self) -> Tensor:
        return torch.zeros(4, dtype=torch.float64) if self.sums is None else self.sums

    def reset(self) -> None:
        self.sums = None


class Words(Mergeable):
    """How often each word occurs: a dict state."""

    votes: Counter[str]

    def update(self, candidates: list[str], references: list[str]) -> None:
        self.votes.update(word for sentence in [*candidates, *references] for word in sentence.split())

    def merge_state(self, others: Sequence[Words]) -> None:
        for other in others:
            self.votes += other.votes

    def compute(self) -> dict[str, int]:
        return dict(sorted(self.votes.items()))

    def reset(self) -> None:
        self.votes = Counter()


class EverySampleOnce(Mergeable):
    """The mean of all samples, each once, however often it was repeated to fill a batch."""

    seen: dict[int, float]

    def update(self, x: Tensor, indices: Tensor) -> None:
        self.seen |= dict(zip(indices.tolist(), x.tolist(), strict=True))

    def merge_state(self, others: Sequence[EverySampleOnce]) -> None:
        for other in others:
            self.seen |= other.seen

    def compute(self) -> float:
        return sum(value for _, value in sorted(self.seen.items())) / max(1, len(self.seen))

    def reset(self) -> None:
        self.seen = {}


class Spread(Total):
    """Variance by centred moments, merged as Chan, Golub and LeVeque do."""

    moments: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("moments", torch.zeros(3, dtype=torch.float64), dist_reduce_fx=self.merged)

    @staticmethod
    def merged(rows: Tensor) -> Tensor:
        count, mean, squares = rows[0]
        for other_count, other_mean, other_squares in rows[1:]:
            both = (count + other_count).clamp(min=1)
            apart = other_mean - mean
            squares = squares + other_squares + apart * apart * count * other_count / both
            mean, count = mean + apart * other_count / both, count + other_count
        return torch.stack([count, mean, squares])

    def update(self, x: Tensor) -> None:
        if x.numel():
            wide = x.double()
            mine = torch.stack([torch.tensor(float(x.numel())).double(), wide.mean(), wide.var(correction=0) * len(x)])
            self.moments = self.merged(torch.stack([self.moments, mine]))

    def compute(self) -> Tensor:
        return self.moments[2] / self.moments[0]


class Extremes(Total):
    """Maximum, minimum and a flag, of three dtypes."""

    more: ClassVar = {
        "high": (-torch.inf, "max"),
        "low": (torch.tensor(torch.inf, dtype=torch.float64), "min"),
        "negative": (False, "max"),
    }

    def update(self, x: Tensor) -> None:
        if x.numel():
            self.high = torch.maximum(self.high, x.max())  # type: ignore[has-type]
            self.low = torch.minimum(self.low, x.min().double())  # type: ignore[has-type]
            self.negative |= (x < 0).any()  # type: ignore[misc,operator]

    def compute(self) -> dict[str, Any]:
        return {"high": self.high, "low": self.low, "negative": self.negative}


def gathered_median(batches: list[Any]) -> Tensor:
    """A function of our own with a gather."""
    mine = torch.cat([x for (x,) in batches]) if batches else torch.zeros(0)
    return all_gather_cat(mine).sort().values.quantile(0.5)


def reduced_total(batches: list[Any]) -> Tensor:
    return all_reduce(total_of(batches))


def weighted_mean(batches: list[Any]) -> Tensor:
    count = sum(x.numel() for (x,) in batches)
    return mean(total_of(batches) / max(1, count), weight=count)


def torcheval(name: str, **options: Any) -> Any:
    return partial(getattr(importlib.import_module("torcheval.metrics"), name), **options)


def by_name(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.float().mean() for name, value in state.items()}


def fed(batches: list[tuple[Tensor]]) -> list[dict[str, Any]]:
    """What a function metric is updated with: the reduced batch."""
    return [{"total": x.sum(), "high": x.max(), "loss": x.mean(), "weight": len(x)} for (x,) in batches]


POSITIVE = inputs.regression(low=0.25, high=4.0, min_samples=2)

RIGHT = [
    Specimen("total", Total, judged=laws.ALL - laws.SHIFT - laws.PADDING_REMOVED),
    Specimen("ordered", Ordered, judged=ordered()),
    Specimen("batch-totals", BatchTotals, judged=ordered().off(laws.BATCH_SPLIT, because=OF_BATCHES)),
    Specimen("lazy", Lazy, inputs.regression(2), judged=laws.DEFAULT | laws.WORLD_SIZE),
    Specimen("words", Words, inputs.text(references=None), judged=laws.DEFAULT | laws.WORLD_SIZE),
    Specimen("every-sample-once", EverySampleOnce, indexed(), judged=laws.DEFAULT | laws.PADDING_REMOVED),
    Specimen("spread", Spread, inputs.aggregation(min_samples=2), judged=laws.DEFAULT | laws.SHIFT),
    Specimen("extremes", Extremes, judged=laws.DEFAULT | laws.WORLD_SIZE),
    Specimen(
        "function-metric",
        partial(from_function, by_name, {"total": "sum", "high": "max", "loss": "mean"}),
        inputs.aggregation().map(fed),
        judged=laws.DEFAULT.off(laws.BATCH_SPLIT, because=OF_BATCHES).off(laws.SAMPLE_ORDER, because=OF_BATCHES),
    ),
    Specimen("gathered-median", function(gathered_median)),
    Specimen("reduced-total", function(reduced_total), judged=laws.DEFAULT | laws.WORLD_SIZE),
    Specimen("weighted-mean", function(weighted_mean)),
    Specimen("f1", classification.BinaryF1Score, inputs.binary(), judged=INTEGERS),
    Specimen("auroc", classification.BinaryAUROC, inputs.binary()),
    Specimen("average-precision", partial(classification.BinaryAveragePrecision, thresholds=9), inputs.binary()),
    Specimen("confusion", partial(classification.MulticlassConfusionMatrix, 5), inputs.multiclass(5), judged=INTEGERS),
    Specimen(
        "accuracy",
        partial(classification.MulticlassAccuracy, 3, average="macro"),
        inputs.multiclass(3, preds="labels"),
        judged=INTEGERS,
    ),
    Specimen("multilabel", partial(classification.MultilabelF1Score, 3), inputs.multilabel(3), judged=INTEGERS),
    Specimen("mean", tm.MeanMetric, inputs.aggregation(weights=True, low=0.25)),
    Specimen("max", tm.MaxMetric),
    Specimen("cat", tm.CatMetric, judged=ordered()),
    Specimen("squared-error", regression.MeanSquaredError, inputs.regression()),
    Specimen("r2", regression.R2Score, POSITIVE),
    Specimen("spearman", regression.SpearmanCorrCoef, POSITIVE),
    Specimen("reciprocal-rank", retrieval.RetrievalMRR, inputs.retrieval()),
    Specimen("word-error-rate", text.WordErrorRate, inputs.text(references=None)),
    Specimen("bleu", text.BLEUScore, inputs.text()),
    Specimen("masks", partial(segmentation.MeanIoU, num_classes=3), inputs.segmentation(3)),
    Specimen("mutual-information", clustering.MutualInfoScore, inputs.clustering()),
    Specimen(
        "by-class",
        lambda: wrappers.ClasswiseWrapper(classification.MulticlassAccuracy(3, average=None)),
        inputs.multiclass(3),
    ),
    Specimen("by-output", lambda: wrappers.MultioutputWrapper(regression.MeanAbsoluteError(), 2), inputs.regression(2)),
    Specimen(
        "collection",
        lambda: tm.MetricCollection([classification.BinaryPrecision(), classification.BinaryAUROC()]),
        inputs.binary(),
    ),
    Specimen("torcheval-mean", torcheval("Mean"), inputs.aggregation()),
    Specimen("torcheval-auroc", torcheval("BinaryAUROC"), inputs.binary()),
    Specimen("torcheval-f1", torcheval("MulticlassF1Score", num_classes=3), inputs.multiclass(3)),
]
