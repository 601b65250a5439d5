"""A context-parallel rank without a token that counts."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import layout, mean

THREAD = "NVIDIA/Megatron-LM#1764"
DATE = "2025-08-21"
SYMPTOM = "the loss is NaN under context parallelism when all tokens of one rank are masked"
RANKS, BACKEND = 2, "threads"  # cp 2
LOSSES: tuple[list[float], ...] = ([], [2.0, 4.0, 9.0])  # of the tokens that are not masked


def naive(comm: Any) -> float:
    """Average the ranks' means."""
    loss = torch.tensor(LOSSES[comm.rank]).mean()
    dist.all_reduce(loss)
    return float(loss / comm.world_size)


def ours(comm: Any) -> float:
    """Weight the means by tokens."""
    ranks = layout({"cp": 2}, cp="shard", comm=comm)
    losses = torch.tensor(LOSSES[comm.rank])
    return float(mean(losses.mean(), weight=len(losses), comm=ranks))


def right() -> float:
    """Return the mean over the tokens that count."""
    return 5.0
