"""Statistics of observations for normalization."""

from typing import Any

import torch

from distmetrics import mean

THREAD = "leggedrobotics/rsl_rl#226"
DATE = "2026-08-20"
SYMPTOM = "each rank normalizes observations by the mean and variance of its own environments"
RANKS, BACKEND = 2, "threads"


def _observations(rank: int) -> torch.Tensor:
    """Return the observations of 3 or 5 environments."""
    numbers = torch.rand(8, 4, generator=torch.Generator().manual_seed(0))
    return numbers[:3] if rank == 0 else 2 + numbers[3:]


def naive(comm: Any) -> float:
    """Take the variance of this rank's environments."""
    return float(_observations(comm.rank).var(0, correction=0).sum())


def ours(comm: Any) -> float:
    """Take means over all ranks' environments."""
    mine = _observations(comm.rank)
    center = mean(mine.mean(0), weight=len(mine), comm=comm)
    return float(mean((mine - center).square().mean(0), weight=len(mine), comm=comm).sum())


def right() -> float:
    """Return the variance of all environments."""
    both = torch.cat([_observations(0), _observations(1)])
    return float(both.var(0, correction=0).sum())
