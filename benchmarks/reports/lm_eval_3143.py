"""A rank that is busy for hours while the others wait for it."""

import time
from typing import Any

import torch.distributed as dist

from distmetrics import all_gather_object, barrier

THREAD = "EleutherAI/lm-evaluation-harness#3143"
DATE = "2025-07-13"
SYMPTOM = "the evaluation never comes through its aggregation; one GPU stays busy for hours"
RANKS, BACKEND = 2, "gloo"


def _aggregate(rank: int) -> None:
    """Score the gathered results on the first rank, without end."""
    if rank == 0:
        time.sleep(3600)


def naive(comm: Any) -> float:
    """Gather, aggregate on the first rank, meet again."""
    dist.all_gather_object([None, None], comm.rank)
    _aggregate(comm.rank)
    dist.barrier()
    return 1.0


def ours(comm: Any) -> float:
    """Do the same with our calls."""
    all_gather_object(comm.rank)
    _aggregate(comm.rank)
    barrier()
    return 1.0


def right() -> float:
    """Return what a rank has when it comes through."""
    return 1.0
