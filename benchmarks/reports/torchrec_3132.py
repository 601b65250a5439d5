"""Files of unequal length, workers that each read some, and a model that needs all ranks."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import MeanMetric

from benchmarks.reports._sharded import Gathered
from distmetrics import sync_and_compute
from distmetrics.data import exact, fresh

THREAD, DATE = "meta-pytorch/torchrec#3132", "2025-06-24"
SYMPTOM = "Ranks with fewer batches make up dummy ones, which count in what is evaluated."
RANKS, BACKEND = 2, "threads"
FILES = [torch.tensor(each) for each in ([1.0, 2.0, 3.0], [4.0], [5.0, 6.0, 7.0, 8.0])]


class Samples(IterableDataset[Tensor]):
    """The samples of some files, one after the other."""

    def __init__(self, files: list[Tensor], batches: int = 0) -> None:
        self.files, self.batches = files, batches

    def __iter__(self) -> Iterator[Tensor]:
        samples = torch.cat(self.files)
        yield from samples
        yield from torch.zeros(max(self.batches - len(samples), 0))  # dummies


def naive(comm: Any) -> float:
    """Fill up with dummies until all ranks have as many batches."""
    model, mean = Gathered(comm.world_size, comm.rank), MeanMetric()
    for x in DataLoader(Samples(FILES[comm.rank :: 2], batches=7), batch_size=1):
        mean.update(model(x))
    return float(mean.compute())


def ours(comm: Any) -> float:
    """Let exact fill up, and leave out what only fills up."""
    model, mean = Gathered(comm.world_size, comm.rank), MeanMetric()
    for x in exact(DataLoader(Samples(FILES), batch_size=1), equal_batches=True):
        mean.update(fresh(model(x)))
    return float(sync_and_compute(mean))


def right() -> float:
    """Return the mean over all samples."""
    return float(2 * torch.cat(FILES).mean())
