"""A share without a token."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import mean

THREAD = "radixark/miles#3229"
DATE = "2026-09-13"
SYMPTOM = "a rank whose share has no token skips the whitening's reduction, and the others hang"
RANKS, BACKEND = 2, "gloo"
ADVANTAGES: tuple[list[float], ...] = ([1.0, 2.0, 6.0], [])


def naive(comm: Any) -> float | None:
    """Return the mean, where there is anything to whiten."""
    mine = torch.tensor(ADVANTAGES[comm.rank])
    if len(mine) == 0:
        return None
    sums = torch.stack([mine.sum(), torch.tensor(float(len(mine)))])
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def ours(comm: Any) -> float:
    """Return the mean by tokens: a rank without any has the weight 0."""
    mine = torch.tensor(ADVANTAGES[comm.rank])
    return float(mean(mine.mean(), weight=len(mine), comm=comm))


def right() -> float:
    """Return the mean of all tokens."""
    return 3.0
