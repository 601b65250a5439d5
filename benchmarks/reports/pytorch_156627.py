"""Predictions of unequal number."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import all_gather_cat

THREAD, DATE = "pytorch/pytorch#156627", "2025-06-23"
SYMPTOM = (
    "all_gather of tensors of unequal size does not work on every backend that its page speaks of."
)
RANKS, BACKEND = 2, "gloo"
SCORES = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])


def naive(comm: Any) -> float:
    """Gather 3 scores of one rank, and 2 of the other."""
    parts = [torch.zeros(3), torch.zeros(2)]
    dist.all_gather(parts, SCORES[comm.rank :: 2].contiguous())
    return float(torch.cat(parts).mean())


def ours(comm: Any) -> float:
    """Join them."""
    return float(all_gather_cat(SCORES[comm.rank :: 2]).mean())


def right() -> float:
    """Return the mean of all scores."""
    return float(SCORES.mean())
