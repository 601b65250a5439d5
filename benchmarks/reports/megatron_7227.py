"""An embedding that two stages hold."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import grad_norm, layout

THREAD = "NVIDIA/Megatron-LM#7227"
DATE = "2026-09-11"
SYMPTOM = "the embedding that first and last stage share counts twice in the gradient norm: 40"
RANKS, BACKEND = 2, "threads"  # pp 2
GRADIENT = torch.full((8,), 10.0)  # on both stages, once it is synchronized


def naive(comm: Any) -> float:
    """Add up the squares of all stages."""
    squares = GRADIENT.square().sum()
    dist.all_reduce(squares)
    return float(squares.sqrt())


def ours(comm: Any) -> float:
    """Ask for the norm, and say that stages hold other parameters."""
    weight = torch.nn.Parameter(torch.zeros(8))
    weight.grad = GRADIENT
    return float(grad_norm(weight, comm=layout({"pp": 2}, pp="shard", comm=comm)))


def right() -> float:
    """Return the norm with the embedding once."""
    return float(GRADIENT.norm())
