"""Rows that fill up, cut off where they are not."""

from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from distmetrics import all_gather_cat
from distmetrics.data import exact

THREAD, DATE = "mllam/neural-lam#749", "2026-09-12"
SYMPTOM = (
    "Repeated rows are cut off at the end of what is gathered in rank order, where they are not: "
    "statistics are of wrong rows."
)
RANKS, BACKEND = 3, "threads"
ROWS = torch.tensor([3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0])


def naive(comm: Any) -> float:
    """Fill up with the last row, gather, and keep as many rows as there are."""
    padded = torch.cat([ROWS, ROWS[-1:].expand(-len(ROWS) % comm.world_size)])
    data = TensorDataset(padded)
    sampler: Any = DistributedSampler(data, comm.world_size, comm.rank, shuffle=False)
    mine = torch.cat([rows for (rows,) in DataLoader(data, batch_size=2, sampler=sampler)])
    parts = [torch.zeros_like(mine) for _ in range(comm.world_size)]
    dist.all_gather(parts, mine)
    return float(torch.cat(parts)[: len(ROWS)].std())


def ours(comm: Any) -> float:
    """Deal rows out once, and join what ranks have."""
    rows = [rows for (rows,) in exact(DataLoader(TensorDataset(ROWS), batch_size=2))]
    mine = torch.cat(rows) if rows else torch.zeros(0)
    return float(all_gather_cat(mine).std())


def right() -> float:
    """Return the standard deviation of all rows."""
    return float(ROWS.std())
