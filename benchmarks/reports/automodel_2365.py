"""A validation that is not dealt out."""

from typing import Any

import torch
import torch.distributed as dist
from torchmetrics import SumMetric
from torchmetrics.classification import BinaryAccuracy

from distmetrics import sync_and_compute

THREAD = "NVIDIA-NeMo/Automodel#2365"
DATE = "2026-06-01"
SYMPTOM = "every data-parallel rank scores the whole validation set, and all counts are added up"
RANKS, BACKEND = 2, "threads"
CANNOT = "a few small counts may be equal by chance: docs/layouts.md"


def _scores() -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and targets of the whole set, as every rank has them."""
    scores = torch.rand(50, generator=torch.Generator().manual_seed(0))
    return scores, (scores > 0.3).long()


def naive(comm: Any) -> float:
    """Add up the ranks' counts."""
    count = torch.tensor(len(_scores()[0]))
    dist.all_reduce(count)
    return float(count)


def ours(comm: Any) -> float:
    """Sync metrics of what this rank has scored."""
    metrics = {"accuracy": BinaryAccuracy(), "count": SumMetric()}
    scores, targets = _scores()
    metrics["accuracy"].update(scores, targets)
    metrics["count"].update(len(scores))
    return float(sync_and_compute(metrics, comm=comm)["count"])


def right() -> float:
    """Return the size of the set."""
    return 50.0
