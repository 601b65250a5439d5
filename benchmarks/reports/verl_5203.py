"""Parts of a loss that ranks have scaled up already."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import Log

THREAD = "verl-project/verl#5203"
DATE = "2026-02-05"
SYMPTOM = "metrics that are aggregated by sum grow with the number of data-parallel ranks"
RANKS, BACKEND = 2, "threads"
# the losses of the tokens of each micro-batch of each rank
LOSSES = (([1.0, 3.0], [2.0]), ([4.0, 4.0, 1.0], [0.5, 0.5]))
TOKENS = sum(len(losses) for rank in LOSSES for losses in rank)


def naive(comm: Any) -> float:
    """Scale each part for the mean of gradients, and add up the parts of all ranks."""
    parts = [sum(losses) / TOKENS * comm.world_size for losses in LOSSES[comm.rank]]
    loss = torch.tensor(sum(parts))
    dist.all_reduce(loss)
    return float(loss)


def ours(comm: Any) -> float:
    """Log the mean of each micro-batch with its number of tokens."""
    log = Log(comm)
    for losses in LOSSES[comm.rank]:
        log.mean("pg_loss", torch.tensor(losses).mean(), weight=len(losses))
    return float(log.flush()["pg_loss"])


def right() -> float:
    """Return the mean over all tokens."""
    return sum(sum(losses) for rank in LOSSES for losses in rank) / TOKENS
