"""A state whose shape depends on how many samples came at once.

The release that is installed is mended; the metric here does what the thread's did.
"""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from distmetrics import sync_and_compute

THREAD, DATE = "Lightning-AI/torchmetrics#3167", "2025-07-04"
SYMPTOM = (
    "Pearson's correlation of several outputs changes the shape of a state after a single "
    "observation, and ranks cannot be merged."
)
RANKS, BACKEND = 2, "threads"
ROWS = torch.tensor([[1.0, -7.0], [3.0, 2.0], [-4.0, 5.0]])


class Largest(Metric):
    """The largest deviation of each column from zero."""

    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("largest", torch.zeros(2), dist_reduce_fx="max")

    def update(self, rows: Tensor) -> None:
        """Add rows; one alone leaves its dimension in the state."""
        rows = rows.abs()
        self.largest = torch.maximum(self.largest, rows if len(rows) == 1 else rows.amax(0))

    def compute(self) -> Tensor:
        """Return the sum over columns."""
        return self.largest.sum()


def _updated(rows: Tensor) -> Largest:
    metric = Largest()
    metric.update(rows)
    return metric


def _share(comm: Any) -> Tensor:
    return ROWS[:2] if comm.rank == 0 else ROWS[2:]


def naive(comm: Any) -> float:
    """Compute a metric of two rows on one rank, and of one on the other."""
    return float(_updated(_share(comm)).compute())


def ours(comm: Any) -> float:
    """Sync the same metric."""
    return float(sync_and_compute(_updated(_share(comm))))


def right() -> float:
    """Compute over all rows."""
    return float(_updated(ROWS).compute())
