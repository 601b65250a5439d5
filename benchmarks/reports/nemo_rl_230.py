"""A microbatch without valid samples."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import Log

THREAD = "NVIDIA-NeMo/RL#230"
DATE = "2025-04-18"
SYMPTOM = "a microbatch without valid samples reports 0, which the mean over microbatches counts"
RANKS, BACKEND = 2, "threads"
# the ratios of the valid samples of each microbatch of each rank
RATIOS: tuple[list[list[float]], ...] = ([[1.0, 1.25], []], [[0.5], [0.75, 1.0, 1.5]])


def naive(comm: Any) -> float:
    """Average what the microbatches report."""
    means = [sum(ratios) / max(len(ratios), 1) for ratios in RATIOS[comm.rank]]
    ratio = torch.tensor(means).mean()
    dist.all_reduce(ratio)
    return float(ratio / comm.world_size)


def ours(comm: Any) -> float:
    """Log each microbatch with its valid samples."""
    log = Log(comm)
    for ratios in RATIOS[comm.rank]:
        log.mean("ratio", torch.tensor(ratios).mean(), weight=len(ratios))
    return float(log.flush()["ratio"])


def right() -> float:
    """Return the mean over valid samples."""
    return 6.0 / 6
