"""Whitening by the statistics of one context-parallel rank."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import all_reduce, layout, mean

THREAD = "THUDM/slime#2235"
DATE = "2026-07-26"
SYMPTOM = "advantages are whitened by the ranks of one context-parallel rank, not by all tokens"
RANKS, BACKEND = 4, "threads"  # dp 2, cp 2
ADVANTAGES = ([1.0, 2.0], [-3.0], [4.0, 5.0, 6.0], [-7.0, -8.0])  # of the tokens of a rank


def naive(comm: Any) -> float:
    """Return the standard deviation over the data-parallel group."""
    groups = [dist.new_group([cp, 2 + cp]) for cp in range(2)]
    mine = torch.tensor(ADVANTAGES[comm.rank])
    sums = torch.stack([mine.sum(), mine.square().sum(), torch.tensor(float(len(mine)))])
    dist.all_reduce(sums, group=groups[comm.rank % 2])
    total, squares, count = sums
    return float(((squares - total**2 / count) / (count - 1)).sqrt())


def ours(comm: Any) -> float:
    """Return that over both axes, with means that are weighted by tokens."""
    ranks = layout({"dp": 2, "cp": 2}, dp="shard", cp="shard", comm=comm)
    mine = torch.tensor(ADVANTAGES[comm.rank])
    center = mean(mine.mean(), weight=len(mine), comm=ranks)
    variance = mean((mine - center).square().mean(), weight=len(mine), comm=ranks)
    count = all_reduce(torch.tensor(len(mine)), "sum", comm=ranks)
    return float((variance * count / (count - 1)).sqrt())


def right() -> float:
    """Return that of all tokens."""
    return float(torch.tensor([each for rank in ADVANTAGES for each in rank]).std())
