"""A sampler of one's own, whose length is wrong on some ranks."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler, TensorDataset
from torchmetrics import MeanMetric

from distmetrics import sync_and_compute

THREAD, DATE = "neuro-galaxy/torch_brain#217", "2026-05-19"
SYMPTOM = (
    "A sampler for evaluation reports a wrong length on ranks whose share is larger or smaller."
)
RANKS, BACKEND = 3, "threads"
DATA = torch.tensor([1.0, 5.0, 2.0, 8.0, 3.0, 7.0, 4.0])


class Share(Sampler[int]):
    """Every third sample; its length has the comparison the wrong way round."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, len(DATA), RANKS))

    def __len__(self) -> int:
        return len(DATA) // RANKS + (len(DATA) % RANKS < self.rank)


def naive(comm: Any) -> float:
    """Average what ranks have divided by lengths of samplers."""
    sampler = Share(comm.rank)
    loader = DataLoader(TensorDataset(DATA), batch_size=None, sampler=sampler)
    mean = torch.stack([x for (x,) in loader]).sum() / len(sampler)
    dist.all_reduce(mean)
    return float(mean / comm.world_size)


def ours(comm: Any) -> float:
    """Sync a metric that is fed by the same sampler."""
    mean = MeanMetric()
    for (x,) in DataLoader(TensorDataset(DATA), batch_size=2, sampler=Share(comm.rank)):
        mean.update(x)
    return float(sync_and_compute(mean))


def right() -> float:
    """Return the mean over all samples."""
    return float(DATA.mean())
