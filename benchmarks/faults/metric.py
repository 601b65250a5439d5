"""A metric whose compute raises on one rank: it reads a file that only the other machines have."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from benchmarks.faults.job import Job

__all__ = ["Share"]


class Share(Metric):
    """The mean of numbers."""

    total: Tensor
    count: Tensor
    full_state_update = False
    job: ClassVar[Job]  # of the class: no state, and nothing by which the ranks' metrics differ

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, values: Tensor) -> None:
        """Add numbers."""
        self.total += values.sum()
        self.count += values.numel()

    def compute(self) -> Tensor:
        """Return the mean, but on the rank that is at fault."""
        if self.job.faulty:
            self.job.fault()
            raise FileNotFoundError("labels.csv")  # here
        return self.total / self.count
