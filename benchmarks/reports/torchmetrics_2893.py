"""A compute that changes the states that it was given.

The release that is installed is mended; the metric here does what the thread's did.
"""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from distmetrics import sync_and_compute

THREAD, DATE = "Lightning-AI/torchmetrics#2893", "2025-01-03"
SYMPTOM = (
    "Pearson's correlation changes its synced states when it is computed: the second compute "
    "gives another number."
)
RANKS, BACKEND = 2, "threads"
VALUES = torch.tensor([1.0, 2.0, 4.0, 9.0])


class Total(Metric):
    """A sum that ranks' sums are added to in place."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__(compute_with_cache=False, sync_on_compute=False)
        self.add_state("total", torch.zeros(1), dist_reduce_fx="cat")

    def update(self, values: Tensor) -> None:
        """Add values."""
        self.total = self.total + values.sum()

    def compute(self) -> Tensor:
        """Add up the sums of ranks in the first one's place."""
        first = self.total[0]
        for other in self.total[1:]:
            first += other
        return first.clone()


def _updated(values: Tensor) -> Total:
    metric = Total()
    metric.update(values)
    return metric


def naive(comm: Any) -> float:
    """Sync, and compute twice."""
    metric = _updated(VALUES[comm.rank :: 2])
    metric.sync()
    metric.compute()
    return float(metric.compute())


def ours(comm: Any) -> float:
    """Sync and compute twice."""
    metric = _updated(VALUES[comm.rank :: 2])
    sync_and_compute(metric)
    return float(sync_and_compute(metric))


def right() -> float:
    """Add up all values."""
    return float(_updated(VALUES).compute())
