"""torcheval's metrics, and batches for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torcheval.metrics as te
from torch import Tensor, nn

CLASSES = 3
Batch = tuple[tuple[Any, ...], dict[str, Any]]


class Sample(NamedTuple):
    """``whole``: whether merging gives what one metric has that saw all the data; windows forget, times overlap."""

    make: Callable[[], Any]
    batch: Callable[[torch.Generator], Batch]
    whole: bool = True


def rand(*shape: int, g: torch.Generator) -> Tensor:
    return torch.randint(1, 64, shape, generator=g) / 64


def values(g: torch.Generator) -> Batch:
    return (rand(5, g=g),), {}


def weighted(g: torch.Generator) -> Batch:
    return (rand(5, g=g),), {"weight": 2.5}


def binary(g: torch.Generator) -> Batch:
    target = torch.randint(0, 2, (6,), generator=g)
    target[:2] = torch.tensor([0, 1])
    return (rand(6, g=g), target), {}


def binary_floats(g: torch.Generator) -> Batch:
    (scores, target), _ = binary(g)
    return (scores, target.float()), {}


def two_tasks(g: torch.Generator) -> Batch:
    return (rand(2, 4, g=g), torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0]])), {}


def two_tasks_floats(g: torch.Generator) -> Batch:
    (scores, target), _ = two_tasks(g)
    return (scores, target.float()), {}


def multiclass(g: torch.Generator) -> Batch:
    target = torch.randint(0, CLASSES, (6,), generator=g)
    target[:CLASSES] = torch.arange(CLASSES)
    return (rand(6, CLASSES, g=g), target), {}


def multilabel(g: torch.Generator) -> Batch:
    target = torch.randint(0, 2, (6, CLASSES), generator=g)
    target[0], target[1] = 0, 1
    return (rand(6, CLASSES, g=g), target), {}


def numbers(g: torch.Generator) -> Batch:
    return (rand(5, g=g), rand(5, g=g)), {}


def two_outputs(g: torch.Generator) -> Batch:
    return (rand(5, 2, g=g), rand(5, 2, g=g)), {}


def images(g: torch.Generator) -> Batch:
    return (rand(2, 3, 4, 4, g=g), rand(2, 3, 4, 4, g=g)), {}


def clicks(g: torch.Generator) -> Batch:
    return (torch.randint(0, 2, (6,), generator=g),), {}


def logits(g: torch.Generator) -> Batch:
    return (rand(2, 4, 5, g=g), torch.randint(0, 5, (2, 4), generator=g)), {}


def texts(g: torch.Generator) -> Batch:
    words = ["metric", "state", "rank", "merge", "sum"]

    def text() -> str:
        return " ".join(words[i] for i in torch.randint(0, len(words), (6,), generator=g).tolist())

    return ([text(), text()], [text(), text()]), {}


def translations(g: torch.Generator) -> Batch:
    (ours, theirs), _ = texts(g)
    return (ours, [[text] for text in theirs]), {}


def timed(g: torch.Generator) -> Batch:
    return (int(torch.randint(1, 9, (), generator=g)), 0.5), {}


def retrieved(g: torch.Generator) -> Batch:
    """Without ties: which of two equal scores is among the first k depends on the batches."""
    (_, target), _ = binary(g)
    return (torch.rand(6, generator=g), target, torch.tensor([0, 0, 0, 1, 1, 1])), {}


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


def either(make: Callable[..., Any], **arguments: Any) -> Callable[[], Any]:
    return lambda: make(**arguments)


SAMPLES: dict[str, Sample] = {
    "AUC": Sample(te.AUC, numbers),
    "Cat": Sample(te.Cat, values),
    "Cat dim 1": Sample(either(te.Cat, dim=1), lambda g: ((rand(2, 3, g=g),), {})),
    "Max": Sample(te.Max, values),
    "Min": Sample(te.Min, values),
    "Mean": Sample(te.Mean, values),
    "Mean weighted": Sample(te.Mean, weighted),
    "Sum": Sample(te.Sum, values),
    "Throughput": Sample(te.Throughput, timed, whole=False),
    "BinaryAccuracy": Sample(te.BinaryAccuracy, binary),
    "BinaryAUPRC": Sample(te.BinaryAUPRC, binary),
    "BinaryAUROC": Sample(te.BinaryAUROC, binary),
    "BinaryAUROC two tasks": Sample(either(te.BinaryAUROC, num_tasks=2), two_tasks),
    "BinaryBinnedAUPRC": Sample(either(te.BinaryBinnedAUPRC, threshold=5), binary),
    "BinaryBinnedAUROC": Sample(either(te.BinaryBinnedAUROC, threshold=5), binary),
    "BinaryBinnedPrecisionRecallCurve": Sample(either(te.BinaryBinnedPrecisionRecallCurve, threshold=5), binary),
    "BinaryConfusionMatrix": Sample(te.BinaryConfusionMatrix, binary),
    "BinaryF1Score": Sample(te.BinaryF1Score, binary),
    "BinaryNormalizedEntropy": Sample(te.BinaryNormalizedEntropy, binary_floats),
    "BinaryPrecision": Sample(te.BinaryPrecision, binary),
    "BinaryPrecisionRecallCurve": Sample(te.BinaryPrecisionRecallCurve, binary),
    "BinaryRecall": Sample(te.BinaryRecall, binary),
    "BinaryRecallAtFixedPrecision": Sample(either(te.BinaryRecallAtFixedPrecision, min_precision=0.5), binary),
    "MulticlassAccuracy": Sample(te.MulticlassAccuracy, multiclass),
    "MulticlassAccuracy macro": Sample(either(te.MulticlassAccuracy, average="macro", num_classes=CLASSES), multiclass),
    "MulticlassAUPRC": Sample(either(te.MulticlassAUPRC, num_classes=CLASSES), multiclass),
    "MulticlassAUROC": Sample(either(te.MulticlassAUROC, num_classes=CLASSES), multiclass),
    "MulticlassBinnedAUPRC": Sample(either(te.MulticlassBinnedAUPRC, num_classes=CLASSES, threshold=5), multiclass),
    "MulticlassBinnedAUROC": Sample(either(te.MulticlassBinnedAUROC, num_classes=CLASSES, threshold=5), multiclass),
    "MulticlassBinnedPrecisionRecallCurve": Sample(
        either(te.MulticlassBinnedPrecisionRecallCurve, num_classes=CLASSES, threshold=5), multiclass
    ),
    "MulticlassConfusionMatrix": Sample(either(te.MulticlassConfusionMatrix, num_classes=CLASSES), multiclass),
    "MulticlassF1Score": Sample(either(te.MulticlassF1Score, average="macro", num_classes=CLASSES), multiclass),
    "MulticlassPrecision": Sample(either(te.MulticlassPrecision, average=None, num_classes=CLASSES), multiclass),
    "MulticlassPrecisionRecallCurve": Sample(
        either(te.MulticlassPrecisionRecallCurve, num_classes=CLASSES), multiclass
    ),
    "MulticlassRecall": Sample(either(te.MulticlassRecall, average="weighted", num_classes=CLASSES), multiclass),
    "MultilabelAccuracy": Sample(te.MultilabelAccuracy, multilabel),
    "MultilabelAUPRC": Sample(either(te.MultilabelAUPRC, num_labels=CLASSES), multilabel),
    "MultilabelBinnedAUPRC": Sample(either(te.MultilabelBinnedAUPRC, num_labels=CLASSES, threshold=5), multilabel),
    "MultilabelBinnedPrecisionRecallCurve": Sample(
        either(te.MultilabelBinnedPrecisionRecallCurve, num_labels=CLASSES, threshold=5), multilabel
    ),
    "MultilabelPrecisionRecallCurve": Sample(either(te.MultilabelPrecisionRecallCurve, num_labels=CLASSES), multilabel),
    "MultilabelRecallAtFixedPrecision": Sample(
        either(te.MultilabelRecallAtFixedPrecision, num_labels=CLASSES, min_precision=0.5), multilabel
    ),
    "TopKMultilabelAccuracy": Sample(either(te.TopKMultilabelAccuracy, k=2), multilabel),
    "PeakSignalNoiseRatio": Sample(te.PeakSignalNoiseRatio, images),
    "PeakSignalNoiseRatio ranged": Sample(either(te.PeakSignalNoiseRatio, data_range=1.0), images),
    "ClickThroughRate": Sample(te.ClickThroughRate, clicks),
    "HitRate": Sample(either(te.HitRate, k=2), multiclass),
    "ReciprocalRank": Sample(te.ReciprocalRank, multiclass),
    "RetrievalPrecision": Sample(either(te.RetrievalPrecision, k=2, num_queries=2), retrieved),
    "WeightedCalibration": Sample(te.WeightedCalibration, binary),
    "MeanSquaredError": Sample(te.MeanSquaredError, numbers),
    "MeanSquaredError raw": Sample(either(te.MeanSquaredError, multioutput="raw_values"), two_outputs),
    "R2Score": Sample(te.R2Score, numbers),
    "R2Score two outputs": Sample(either(te.R2Score, multioutput="raw_values"), two_outputs),
    "BLEUScore": Sample(either(te.BLEUScore, n_gram=2), translations),
    "Perplexity": Sample(te.Perplexity, logits),
    "WordErrorRate": Sample(te.WordErrorRate, texts),
    "WordInformationLost": Sample(te.WordInformationLost, texts),
    "WordInformationPreserved": Sample(te.WordInformationPreserved, texts),
    "WindowedBinaryAUROC": Sample(either(te.WindowedBinaryAUROC, max_num_samples=8), binary, whole=False),
    "WindowedBinaryNormalizedEntropy": Sample(
        either(te.WindowedBinaryNormalizedEntropy, max_num_updates=2), binary_floats, whole=False
    ),
    "WindowedBinaryNormalizedEntropy two tasks": Sample(
        either(te.WindowedBinaryNormalizedEntropy, max_num_updates=9, num_tasks=2), two_tasks_floats
    ),
    "WindowedClickThroughRate": Sample(either(te.WindowedClickThroughRate, max_num_updates=2), clicks, whole=False),
    "WindowedMeanSquaredError": Sample(either(te.WindowedMeanSquaredError, max_num_updates=2), numbers, whole=False),
    "WindowedMeanSquaredError wide": Sample(either(te.WindowedMeanSquaredError, max_num_updates=20), numbers),
    "WindowedWeightedCalibration": Sample(
        either(te.WindowedWeightedCalibration, max_num_updates=2, enable_lifetime=False), binary, whole=False
    ),
    "dict, int and float states": Sample(PerKey, values),
}

# How often each rank updates, for worlds of 1 to 4 ranks.
UPDATES: dict[str, Callable[[int], list[int]]] = {
    "even": lambda world_size: [2] * world_size,
    "ragged": lambda world_size: [3, 1, 2, 1][:world_size],
    "empty first": lambda world_size: [0, 2, 1, 1][:world_size],
    "empty last": lambda world_size: [*[1, 2, 1][: world_size - 1], 0],
    "all but one empty": lambda world_size: [0] * (world_size - 2) + [2, 0] if world_size > 1 else [3],
}


def batches(name: str, counts: list[int]) -> list[list[Batch]]:
    """Return the batches of every rank."""
    g = torch.Generator().manual_seed(len(name))
    return [[SAMPLES[name].batch(g) for _ in range(count)] for count in counts]


def fed(name: str, given: list[Batch]) -> Any:
    metric = SAMPLES[name].make()
    for args, kwargs in given:
        metric.update(*args, **kwargs)
    return metric
