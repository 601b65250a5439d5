"""Lists of auxiliary losses of different length."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import all_reduce

THREAD = "NVIDIA/Megatron-LM#3401"
DATE = "2026-02-13"
SYMPTOM = "a stage without experts has a shorter list of auxiliary losses, and their sum hangs"
RANKS, BACKEND = 2, "gloo"  # pp 2
LAYERS, EXTRA = 14, 1


def _losses(stage: int) -> torch.Tensor:
    """Return the losses by layer; the router counts the extra layer, the logging does not."""
    return torch.zeros(LAYERS) if stage == 0 else torch.ones(LAYERS + EXTRA)


def naive(comm: Any) -> float:
    """Add up over the stages."""
    losses = _losses(comm.rank)
    dist.all_reduce(losses)
    return float(losses.sum())


def ours(comm: Any) -> float:
    """Add up with our call."""
    return float(all_reduce(_losses(comm.rank), "sum", comm=comm).sum())


def right() -> float:
    """Return the losses of all layers."""
    return float(LAYERS + EXTRA)
