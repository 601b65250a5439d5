"""Tokens per second where ranks share the tokens."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import Log, layout

THREAD = "meta-pytorch/torchtune#2622"
DATE = "2025-04-22"
SYMPTOM = "tokens per second count the same tokens once for each tensor-parallel rank"
RANKS, BACKEND = 4, "threads"  # dp 2, tp 2
TOKENS, SECONDS = (1000, 600), 0.5  # of the two data-parallel ranks


def naive(comm: Any) -> float:
    """Add up over all ranks."""
    tokens = torch.tensor(TOKENS[comm.rank // 2])
    dist.all_reduce(tokens)
    return float(tokens / SECONDS)


def ours(comm: Any) -> float:
    """Log over a layout that says what the axes hold."""
    log = Log(layout({"dp": 2, "tp": 2}, dp="shard", tp="same", comm=comm))
    log.sum("tokens", TOKENS[comm.rank // 2])
    return float(log.flush()["tokens"]) / SECONDS


def right() -> float:
    """Return the tokens of both by the time."""
    return sum(TOKENS) / SECONDS
