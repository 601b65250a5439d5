"""Extremes without a reduction."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from distmetrics import sync_and_compute

THREAD, DATE = "open-edge-platform/anomalib#2499", "2025-01-10"
SYMPTOM = (
    "The least and the largest score have no reduction: scores are normalized otherwise on "
    "several GPUs."
)
RANKS, BACKEND = 2, "threads"
CANNOT = "a state without a reduction is stacked, and some metrics count on it: docs/adapters.md"
SCORES = torch.tensor([0.2, 0.9, 0.4, 0.5, 0.3, 0.1])


class MinMax(Metric):
    """The least and the largest score, which add_state is told nothing of."""

    low: Tensor
    high: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("low", torch.tensor(float("inf")))
        self.add_state("high", torch.tensor(float("-inf")))

    def update(self, scores: Tensor) -> None:
        """Add scores."""
        self.low = torch.minimum(self.low, scores.min())
        self.high = torch.maximum(self.high, scores.max())

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return both."""
        return self.low, self.high


def _updated(scores: Tensor) -> MinMax:
    metric = MinMax()
    metric.update(scores)
    return metric


def _normalized(low: Tensor, high: Tensor) -> float:
    """Return the mean of all scores from 0 to 1."""
    return float(((SCORES[:, None] - low) / (high - low)).mean())


def naive(comm: Any) -> float:
    """Normalize by what a metric computes that syncs itself."""
    return _normalized(*_updated(SCORES[comm.rank :: 2]).compute())


def ours(comm: Any) -> float:
    """Normalize by what the same metric gives, synced."""
    return _normalized(*sync_and_compute(_updated(SCORES[comm.rank :: 2])))


def right() -> float:
    """Normalize by the extremes of all scores."""
    return _normalized(*_updated(SCORES).compute())
