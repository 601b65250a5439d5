"""What is synced, and beside which step: metrics of one rank, updated with its shard; DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.conformance import prepare

prepare()  # before torchmetrics, which looks for it once
from torchmetrics import MetricCollection, classification  # noqa: E402

CLASSES = 10
_NAMES = "Accuracy Precision Recall F1Score Specificity StatScores FBetaScore HammingDistance"


class Case(NamedTuple):
    """Metrics, and what they are called."""

    title: str  # for people
    make: Callable[[int, int], Any]  # ``make(rank, world_size)`` returns the metrics, updated


def training_step(batch_size: int, width: int = 512) -> Callable[[], Tensor]:
    """Return a step of DDP that takes some milliseconds, and returns its loss."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, width), nn.ReLU()] * 4
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, CLASSES)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, labels = torch.randn(batch_size, width), torch.arange(batch_size) % CLASSES

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    return step


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


def _collected(**options: bool) -> Callable[[int, int], MetricCollection]:
    def make(rank: int, world_size: int) -> MetricCollection:
        torch.manual_seed(rank)
        metrics = collection(**options)
        for _ in range(3):
            metrics.update(torch.randn(64, CLASSES).softmax(1), torch.randint(CLASSES, (64,)))
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


CASES: dict[str, Case] = {
    "counts": Case("20 metrics, groups off", _collected(compute_groups=False)),
    "counts, groups": Case("20 metrics, groups on", _collected(compute_groups=True)),
    "exact": Case(
        "22 metrics, exact AUROC and AP, groups off", _collected(compute_groups=False, exact=True)
    ),
    "mAP": Case("mean average precision, 1 000 images", mean_average_precision),
}
