"""The cases of benchmarks/sync.py: each makes the metrics of one rank, updated with its shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.conformance import prepare

prepare()  # before torchmetrics, which looks for it once
from torchmetrics import MetricCollection, classification  # noqa: E402

CLASSES = 10
_ROWS = 192  # on each rank, for the collections
_NAMES = "Accuracy Precision Recall F1Score Specificity StatScores FBetaScore HammingDistance"
_WORDS = "the a cat dog sat lay on in mat house and then slept ran"


class Case(NamedTuple):
    """One line of the table."""

    title: str  # for people
    make: Callable[[int, int], Any]  # ``make(rank, world_size)`` returns the metrics, updated
    theirs: str = "torchmetrics"  # "torchmetrics" or "torcheval": who else syncs them
    slow: bool = False  # the other takes seconds a sync, and gets few repeats
    worlds: tuple[int, ...] = (2, 4, 8)  # sizes at which it is run


def collection(*, compute_groups: bool, exact: bool = False) -> MetricCollection:
    """Twenty metrics of ten classes with sum states; ``exact`` adds two that keep lists."""
    made: dict[str, Any] = {}
    options: dict[str, Any] = {"num_classes": CLASSES, "validate_args": False}
    for average in ("macro", "micro"):
        for name in _NAMES.split():
            extra = {"beta": 2.0} if name == "FBetaScore" else {}
            kind = getattr(classification, f"Multiclass{name}")
            made[f"{average}_{name}"] = kind(average=average, **options, **extra)
    names = ["ConfusionMatrix", "CohenKappa", "MatthewsCorrCoef", "JaccardIndex"]
    for name in [*names, "AUROC", "AveragePrecision"] if exact else names:
        made[name] = getattr(classification, f"Multiclass{name}")(**options)
    return MetricCollection(made, compute_groups=compute_groups)


def _collected(compute_groups: bool, exact: bool) -> Callable[[int, int], MetricCollection]:
    def make(rank: int, world_size: int) -> MetricCollection:
        torch.manual_seed(rank)
        metrics = collection(compute_groups=compute_groups, exact=exact)
        rows = _ROWS // 3
        for _ in range(3):
            metrics.update(torch.randn(rows, CLASSES).softmax(1), torch.randint(CLASSES, (rows,)))
        return metrics

    return make


def _boxes(generator: torch.Generator) -> Tensor:
    count = int(torch.randint(1, 8, (), generator=generator))
    corner = torch.rand(count, 2, generator=generator) * 300
    size = 1 + torch.rand(len(corner), 2, generator=generator) * 300
    return torch.cat([corner, corner + size], dim=1)


def mean_average_precision(rank: int, world_size: int) -> Any:
    """A thousand images over all ranks, up to seven boxes each."""
    from torchmetrics.detection import MeanAveragePrecision

    metric = MeanAveragePrecision()
    generator = torch.Generator().manual_seed(rank)
    for _ in range(1000 // world_size):
        found, truth = _boxes(generator), _boxes(generator)
        labels = [torch.randint(5, (len(boxes),), generator=generator) for boxes in (found, truth)]
        scores = torch.rand(len(found), generator=generator)
        found_boxes = {"boxes": found, "scores": scores, "labels": labels[0]}
        metric.update([found_boxes], [{"boxes": truth, "labels": labels[1]}])
    return metric


def rouge(rank: int, world_size: int) -> Any:
    """A thousand sentences over all ranks; without rougeLsum, which needs a download."""
    from torchmetrics.text import ROUGEScore

    metric = ROUGEScore(rouge_keys=("rouge1", "rouge2", "rougeL"))
    words = _WORDS.split()
    generator = torch.Generator().manual_seed(rank)

    def sentence() -> str:
        chosen = torch.randint(len(words), (8,), generator=generator).tolist()
        return " ".join(words[place] for place in chosen)

    count = 1000 // world_size
    metric.update([sentence() for _ in range(count)], [sentence() for _ in range(count)])
    return metric


def torcheval(rank: int, world_size: int) -> Any:
    """Twenty metrics of torcheval."""
    from torcheval import metrics as te

    torch.manual_seed(rank)
    made: dict[str, Any] = {}
    for average in ("macro", "micro", "weighted", None):
        for name in ("F1Score", "Precision", "Recall"):
            kind = getattr(te, f"Multiclass{name}")
            made[f"{average} {name}"] = kind(num_classes=CLASSES, average=average)
    for average in ("macro", "micro"):
        for k in (1, 2, 3):
            accuracy = te.MulticlassAccuracy(num_classes=CLASSES, average=average, k=k)
            made[f"{average} accuracy at {k}"] = accuracy
    made["confusion"] = te.MulticlassConfusionMatrix(CLASSES)
    made["normalized"] = te.MulticlassConfusionMatrix(CLASSES, normalize="true")
    scores, labels = torch.rand(_ROWS, CLASSES), torch.randint(CLASSES, (_ROWS,))
    for metric in made.values():
        metric.update(scores, labels)
    return made


CASES: dict[str, Case] = {
    "counts": Case("20 metrics, groups off", _collected(False, False)),
    "counts, groups": Case("20 metrics, groups on", _collected(True, False)),
    "exact": Case("22 metrics, exact AUROC and AP, groups off", _collected(False, True)),
    "exact, groups": Case("22 metrics, exact AUROC and AP, groups on", _collected(True, True)),
    "mAP": Case(
        "mean average precision, 1 000 images", mean_average_precision, slow=True, worlds=(2, 4)
    ),
    "ROUGE": Case("ROUGE, 1 000 sentences", rouge, slow=True, worlds=(2, 4)),
    "torcheval": Case("20 metrics of torcheval", torcheval, theirs="torcheval", worlds=(2, 4)),
}
