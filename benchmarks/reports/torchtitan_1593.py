"""Experts' loads, counted in a forward pass that runs twice."""

from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from torchmetrics import SumMetric

from distmetrics import sync_and_compute

THREAD = "pytorch/torchtitan#1593"
DATE = "2025-08-19"
SYMPTOM = "tokens per expert count twice where activation checkpointing computes the layer again"
RANKS, BACKEND = 2, "threads"
CANNOT = "torch does not say that a layer is computed again: docs/log.md"


def _train(comm: Any, count: Any) -> None:
    """Make a step; the layer tells how many of 6 or 8 tokens go to the first expert."""

    def layer(tokens: torch.Tensor) -> torch.Tensor:
        count((tokens > 0).sum())
        return tokens.square()  # its backward pass needs the tokens, and computes them again

    tokens = torch.linspace(-1, 1, 6 + 2 * comm.rank, requires_grad=True)
    checkpoint(layer, tokens, use_reentrant=False).sum().backward()


def naive(comm: Any) -> float:
    """Add up on each rank and over ranks."""
    load = torch.zeros(())
    _train(comm, load.add_)
    dist.all_reduce(load)
    return float(load)


def ours(comm: Any) -> float:
    """Count in a metric."""
    load = SumMetric()
    _train(comm, load.update)
    return float(sync_and_compute(load, comm=comm))


def right() -> float:
    """Return the tokens of the first expert."""
    return 3 + 4
