"""torcheval's metrics, and batches for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torcheval.metrics as te
from torch import Tensor, nn

CLASSES = 3
Batch = tuple[tuple[Any, ...], dict[str, Any]]


class Sample(NamedTuple):
    """``whole``: whether merging gives what one metric has that saw all the data; windows forget, times overlap."""

    make: Callable[[], Any]
    batch: str  # of INPUTS
    whole: bool = True


def rand(*shape: int, g: torch.Generator) -> Tensor:
    return torch.randint(1, 64, shape, generator=g) / 64


def labels(count: int, g: torch.Generator, classes: int = 2) -> Tensor:
    """Each class once at least."""
    target = torch.randint(0, classes, (count,), generator=g)
    target[:classes] = torch.arange(classes)
    return target


def texts(g: torch.Generator) -> list[str]:
    words = ["metric", "state", "rank", "merge", "sum"]
    return [" ".join(words[i] for i in torch.randint(0, len(words), (6,), generator=g).tolist()) for _ in range(2)]


TASKS = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0]])
INPUTS: dict[str, Callable[[torch.Generator], tuple[Any, ...]]] = {
    "values": lambda g: (rand(5, g=g),),
    "weighted": lambda g: (rand(5, g=g),),
    "binary": lambda g: (rand(6, g=g), labels(6, g)),
    "binary_floats": lambda g: (rand(6, g=g), labels(6, g).float()),
    "two_tasks": lambda g: (rand(2, 4, g=g), TASKS),
    "two_tasks_floats": lambda g: (rand(2, 4, g=g), TASKS.float()),
    "multiclass": lambda g: (rand(6, CLASSES, g=g), labels(6, g, CLASSES)),
    "multilabel": lambda g: (rand(6, CLASSES, g=g), torch.stack([labels(6, g) for _ in range(CLASSES)], 1)),
    "numbers": lambda g: (rand(5, g=g), rand(5, g=g)),
    "two_outputs": lambda g: (rand(5, 2, g=g), rand(5, 2, g=g)),
    "rows": lambda g: (rand(2, 3, g=g),),
    "images": lambda g: (rand(2, 3, 4, 4, g=g), rand(2, 3, 4, 4, g=g)),
    "clicks": lambda g: (torch.randint(0, 2, (6,), generator=g),),
    "logits": lambda g: (rand(2, 4, 5, g=g), torch.randint(0, 5, (2, 4), generator=g)),
    "texts": lambda g: (texts(g), texts(g)),
    "translations": lambda g: (texts(g), [[text] for text in texts(g)]),
    "timed": lambda g: (int(torch.randint(1, 9, (), generator=g)), 0.5),
    # without ties: which of two equal scores is among the first k depends on the batches
    "retrieved": lambda g: (torch.rand(6, generator=g), labels(6, g), torch.tensor([0, 0, 0, 1, 1, 1])),
}


class PerKey(te.Metric[Tensor]):
    """A dict of tensors and plain numbers, as a user may write it; keys come with the data."""

    def __init__(self) -> None:
        super().__init__()
        self._add_state("sums", {})
        self._add_state("count", 0)
        self._add_state("seconds", 0.0)
        self.cache = [0]  # no state, like the model
        self.model = nn.Identity()
        self.reset()  # torcheval's dicts have a default for missing keys from the first reset on

    def update(self, x: Tensor) -> PerKey:
        for value in x:
            self.sums[f"k{int(value * 4)}"] += value
        self.count += len(x)
        self.seconds = max(self.seconds, float(x.sum()))
        return self

    def compute(self) -> Any:
        self.cache.append(len(self.cache))  # computing may leave traces: they must be gone afterwards
        self.late = self.count
        return {"sums": dict(sorted(self.sums.items())), "count": self.count, "seconds": self.seconds}

    def merge_state(self, metrics: Any) -> PerKey:
        for metric in metrics:
            for key, value in metric.sums.items():
                self.sums[key] += value
            self.count += metric.count
            self.seconds = max(self.seconds, metric.seconds)
        return self


_MC, _BINNED = {"num_classes": CLASSES}, {"num_classes": CLASSES, "threshold": 5}
_ML, _ML_BINNED = {"num_labels": CLASSES}, {"num_labels": CLASSES, "threshold": 5}
# By the input: classes with their arguments.
_BY_INPUT: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "values": [(te.Cat, {}), (te.Max, {}), (te.Min, {}), (te.Mean, {}), (te.Sum, {}), (PerKey, {})],
    "weighted": [(te.Mean, {})],
    "numbers": [(te.AUC, {}), (te.MeanSquaredError, {}), (te.R2Score, {})],
    "rows": [(te.Cat, {"dim": 1})],
    "two_outputs": [(te.R2Score, {"multioutput": "raw_values"})],
    "binary": [
        (te.BinaryAccuracy, {}), (te.BinaryAUPRC, {}), (te.BinaryAUROC, {}), (te.BinaryConfusionMatrix, {}),
        (te.BinaryF1Score, {}), (te.BinaryPrecision, {}), (te.BinaryPrecisionRecallCurve, {}), (te.BinaryRecall, {}),
        (te.WeightedCalibration, {}), (te.BinaryRecallAtFixedPrecision, {"min_precision": 0.5}),
        (te.BinaryBinnedAUPRC, {"threshold": 5}), (te.BinaryBinnedAUROC, {"threshold": 5}),
        (te.BinaryBinnedPrecisionRecallCurve, {"threshold": 5}),
    ],
    "two_tasks": [(te.BinaryAUROC, {"num_tasks": 2})],
    "binary_floats": [(te.BinaryNormalizedEntropy, {})],
    "two_tasks_floats": [(te.WindowedBinaryNormalizedEntropy, {"max_num_updates": 9, "num_tasks": 2})],
    "multiclass": [
        (te.MulticlassAccuracy, {}), (te.MulticlassAccuracy, {"average": "macro", **_MC}), (te.MulticlassAUPRC, _MC),
        (te.MulticlassAUROC, _MC), (te.MulticlassBinnedAUPRC, _BINNED), (te.MulticlassBinnedAUROC, _BINNED),
        (te.MulticlassBinnedPrecisionRecallCurve, _BINNED), (te.MulticlassConfusionMatrix, _MC),
        (te.MulticlassF1Score, {"average": "macro", **_MC}), (te.MulticlassPrecision, {"average": None, **_MC}),
        (te.MulticlassPrecisionRecallCurve, _MC), (te.MulticlassRecall, {"average": "weighted", **_MC}),
        (te.HitRate, {"k": 2}), (te.ReciprocalRank, {}),
    ],
    "multilabel": [
        (te.MultilabelAccuracy, {}), (te.MultilabelAUPRC, _ML), (te.MultilabelBinnedAUPRC, _ML_BINNED),
        (te.MultilabelBinnedPrecisionRecallCurve, _ML_BINNED), (te.MultilabelPrecisionRecallCurve, _ML),
        (te.MultilabelRecallAtFixedPrecision, {"min_precision": 0.5, **_ML}), (te.TopKMultilabelAccuracy, {"k": 2}),
    ],
    "images": [(te.PeakSignalNoiseRatio, {}), (te.PeakSignalNoiseRatio, {"data_range": 1.0})],
    "clicks": [(te.ClickThroughRate, {})],
    "retrieved": [(te.RetrievalPrecision, {"k": 2, "num_queries": 2})],
    "translations": [(te.BLEUScore, {"n_gram": 2})],
    "texts": [(te.WordErrorRate, {}), (te.WordInformationLost, {}), (te.WordInformationPreserved, {})],
    "logits": [(te.Perplexity, {})],
}  # fmt: skip
_FORGETFUL: list[tuple[Any, dict[str, Any], str]] = [
    (te.Throughput, {}, "timed"),
    (te.WindowedBinaryAUROC, {"max_num_samples": 8}, "binary"),
    (te.WindowedClickThroughRate, {"max_num_updates": 2}, "clicks"),
    (te.WindowedMeanSquaredError, {"max_num_updates": 2}, "numbers"),
    (te.WindowedWeightedCalibration, {"max_num_updates": 2, "enable_lifetime": False}, "binary"),
]


def _named() -> Iterator[tuple[str, Sample]]:
    for batch, classes in _BY_INPUT.items():
        for kind, options in classes:
            yield f"{kind.__name__} {batch} {[*options]}", Sample(partial(kind, **options), batch)
    for kind, options, batch in _FORGETFUL:
        yield kind.__name__, Sample(partial(kind, **options), batch, whole=False)


SAMPLES = dict(_named())
# How often each rank updates, for worlds of 1 to 4 ranks.
UPDATES: dict[str, Callable[[int], list[int]]] = {
    "ragged": lambda world_size: [3, 1, 2, 1][:world_size],
    "empty first": lambda world_size: [0, 2, 1, 1][:world_size],
    "all but one empty": lambda world_size: [0] * (world_size - 2) + [2, 0] if world_size > 1 else [3],
}


def batches(name: str, counts: list[int]) -> list[list[Batch]]:
    """Return the batches of every rank."""
    g = torch.Generator().manual_seed(len(name))
    batch = SAMPLES[name].batch
    options = {"weight": 2.5} if batch == "weighted" else {}
    return [[(INPUTS[batch](g), options) for _ in range(count)] for count in counts]


def fed(name: str, given: list[Batch]) -> Any:
    metric = SAMPLES[name].make()
    for args, kwargs in given:
        metric.update(*args, **kwargs)
    return metric
