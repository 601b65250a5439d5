"""An iterable data set that each process reads from its beginning."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import SumMetric

from distmetrics import sync_and_compute
from distmetrics.data import exact

THREAD, DATE = "huggingface/finetrainers#415", "2025-06-11"
SYMPTOM = (
    "Each process reads all of an iterable data set, so that every sample counts once a process."
)
RANKS, BACKEND = 3, "threads"


class Stream(IterableDataset[Tensor]):
    """Eleven samples."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(11.0))


def _count(loader: Any) -> SumMetric:
    count = SumMetric()
    for batch in loader:
        count.update(len(batch))
    return count


def naive(comm: Any) -> float:
    """Count what each process reads."""
    return float(_count(DataLoader(Stream(), batch_size=4)).compute())


def ours(comm: Any) -> float:
    """Let each process keep its batches."""
    return float(sync_and_compute(_count(exact(DataLoader(Stream(), batch_size=4)))))


def right() -> float:
    """Return the number of samples."""
    return 11.0
