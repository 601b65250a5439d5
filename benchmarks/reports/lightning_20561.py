"""A forward pass with a collective in it, and unequal shares."""

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from benchmarks.reports._sharded import Gathered
from distmetrics import sync_and_compute
from distmetrics.data import exact, fresh

THREAD, DATE = "Lightning-AI/pytorch-lightning#20561", "2025-01-23"
SYMPTOM = "Validation under FSDP is stuck once one rank has run out of data."
RANKS, BACKEND = 3, "threads"
DATA = torch.arange(7.0)


def naive(comm: Any) -> float:
    """Read a share of the data, and add up."""
    model, mean = Gathered(comm.world_size, comm.rank), MeanMetric()
    for (x,) in DataLoader(TensorDataset(DATA[comm.rank :: RANKS]), batch_size=1):
        mean.update(model(x))
    return float(mean.compute())


def ours(comm: Any) -> float:
    """Let exact deal out equal numbers of batches, and leave out rows that only fill up."""
    model, mean = Gathered(comm.world_size, comm.rank), MeanMetric()
    for (x,) in exact(DataLoader(TensorDataset(DATA), batch_size=1), equal_batches=True):
        mean.update(fresh(model(x)))
    return float(sync_and_compute(mean))


def right() -> float:
    """Return the mean over all samples."""
    return float(2 * DATA.mean())
