"""An embedding that two stages hold."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import all_reduce, layout

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
    """Add up squares over a layout, as docs/published-bugs.md does."""
    ranks = layout({"pp": 2}, pp="shard", comm=comm)
    return float(all_reduce(GRADIENT.square().sum(), "sum", comm=ranks).sqrt())


def right() -> float:
    """Return the norm with the embedding once."""
    return float(GRADIENT.norm())
