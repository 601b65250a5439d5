"""A message to stop that one rank gets."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import any_true

THREAD, DATE = "talmolab/sleap-nn#471", "2026-03-02"
SYMPTOM = "Rank 0 alone is told to stop, leaves the loop, and the others hang in their next step."
RANKS, BACKEND = 2, "threads"


def _stop(comm: Any, step: int) -> bool:
    return bool(comm.rank == 0 and step == 3)


def naive(comm: Any) -> float:
    """Wait for each other, and leave the loop where told."""
    for step in range(1, 10):
        dist.all_reduce(torch.ones(1))
        dist.barrier()
        if _stop(comm, step):
            break
    return float(step)


def ours(comm: Any) -> float:
    """Leave the loop where any rank is told."""
    for step in range(1, 10):
        dist.all_reduce(torch.ones(1))
        if any_true(_stop(comm, step)):
            break
    return float(step)


def right() -> float:
    """Return the step of the message."""
    return 3.0
