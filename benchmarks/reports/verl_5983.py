"""A count over one of two axes along which ranks hold other tokens."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import all_reduce, layout

THREAD = "verl-project/verl#5983"
DATE = "2026-04-18"
SYMPTOM = "a token mean is too large by the context-parallel ranks, which the count leaves out"
RANKS, BACKEND = 4, "threads"  # dp 2, cp 2
LOSSES = ([1.0, 2.0], [3.0], [4.0, 5.0, 6.0], [7.0, 8.0])  # of the tokens of a rank


def naive(comm: Any) -> float:
    """Divide by the tokens of the data-parallel group."""
    groups = [dist.new_group([cp, 2 + cp]) for cp in range(2)]
    losses = torch.tensor(LOSSES[comm.rank])
    tokens, total = torch.tensor(float(len(losses))), losses.sum()
    dist.all_reduce(tokens, group=groups[comm.rank % 2])
    dist.all_reduce(total)
    return float(total / tokens)


def ours(comm: Any) -> float:
    """Say what both axes hold, as docs/layouts.md does."""
    ranks = layout({"dp": 2, "cp": 2}, dp="shard", cp="shard", comm=comm)
    losses = torch.tensor(LOSSES[comm.rank])
    sums = {"loss": losses.sum(), "tokens": torch.tensor(len(losses))}
    total = all_reduce(sums, "sum", comm=ranks)
    return float(total["loss"] / total["tokens"])


def right() -> float:
    """Return the mean over all tokens."""
    return sum(map(sum, LOSSES)) / sum(map(len, LOSSES))
