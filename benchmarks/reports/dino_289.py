"""The accuracy of a linear evaluation, with torcheval."""

from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torcheval.metrics import MulticlassAccuracy

from distmetrics import sync_and_compute
from distmetrics.data import exact

THREAD, DATE = "facebookresearch/dino#289", "2025-08-04"
SYMPTOM = "Linear evaluation reports the accuracy of the first GPU's share."
RANKS, BACKEND = 2, "threads"
FOUND = torch.tensor([0, 1, 1, 2, 0, 2, 2, 1, 0])
WANTED = torch.tensor([0, 1, 2, 2, 1, 2, 0, 1, 0])


def _accuracy(loader: Any) -> MulticlassAccuracy:
    metric = MulticlassAccuracy()
    for found, wanted in loader:
        metric.update(found, wanted)
    return metric


def naive(comm: Any) -> float:
    """Compute what a rank has seen."""
    data = TensorDataset(FOUND, WANTED)
    sampler: Any = DistributedSampler(data, comm.world_size, comm.rank, shuffle=False)
    return float(_accuracy(DataLoader(data, batch_size=2, sampler=sampler)).compute())


def ours(comm: Any) -> float:
    """Deal samples out once, and sync the metric."""
    loader = exact(DataLoader(TensorDataset(FOUND, WANTED), batch_size=2))
    return float(sync_and_compute(_accuracy(loader)))


def right() -> float:
    """Score all samples."""
    return float(_accuracy([(FOUND, WANTED)]).compute())
