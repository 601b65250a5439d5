"""The smallest ratio of a completion, where a row has several."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import Log

THREAD = "huggingface/trl#6379"
DATE = "2026-07-13"
SYMPTOM = "the smallest clip ratio of a completion is that of a rank's whole packed row"
RANKS, BACKEND = 2, "threads"
# of each completion: how many of its tokens are clipped, of how many
ROWS = (((0, 4), (3, 4), (1, 2)), ((2, 8), (1, 2)))


def naive(comm: Any) -> float:
    """Take the smallest of the rows' ratios."""
    clipped, tokens = torch.tensor(ROWS[comm.rank]).sum(0)
    ratio = clipped / tokens
    dist.all_reduce(ratio, dist.ReduceOp.MIN)
    return float(ratio)


def ours(comm: Any) -> float:
    """Log each completion."""
    log = Log(comm)
    for clipped, tokens in ROWS[comm.rank]:
        log.min("clip_ratio/low_min", clipped / tokens)
    return float(log.flush()["clip_ratio/low_min"])


def right() -> float:
    """Return the smallest of all completions."""
    return min(clipped / tokens for row in ROWS for clipped, tokens in row)
