"""A rank without a batch, in a forward pass that needs all ranks."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.reports._sharded import Gathered
from distmetrics import mean
from distmetrics.data import exact, fresh

THREAD, DATE = "Lightning-AI/litgpt#2321", "2026-09-04"
SYMPTOM = "Validation fails or hangs where a rank's share has no batch."
RANKS, BACKEND = 3, "threads"
DATA = torch.tensor([1.0, 4.0])


def naive(comm: Any) -> float:
    """Stack the losses of a share."""
    model = Gathered(comm.world_size, comm.rank)
    loader = DataLoader(TensorDataset(DATA[comm.rank :: RANKS]), batch_size=1)
    return float(torch.stack([model(x).mean() for (x,) in loader]).mean())


def ours(comm: Any) -> float:
    """Deal out equal numbers of batches; a rank of weight 0 is left out."""
    model = Gathered(comm.world_size, comm.rank)
    losses: list[Tensor] = []
    for (x,) in exact(DataLoader(TensorDataset(DATA), batch_size=1), equal_batches=True):
        losses.extend(fresh(model(x)))
    loss = sum(losses, torch.tensor(0.0))
    return float(mean(loss / max(len(losses), 1), weight=len(losses)))


def right() -> float:
    """Return the mean over all samples."""
    return float(2 * DATA.mean())
