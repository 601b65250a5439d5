"""A validation over a whole stream whose shares end at different times."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from distmetrics import mean
from distmetrics.data import exact, fresh

THREAD = "pytorch/torchtitan#1618"
DATE = "2025-08-21"
SYMPTOM = "validation over a whole data set hangs when one rank's share ends a batch earlier"
RANKS, BACKEND = 2, "gloo"
TEXTS = 23


class Texts(IterableDataset[torch.Tensor]):
    """A rank's part of a stream of texts, which has been split already, as torchtitan's is."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._data = torch.arange(float(TEXTS))[rank::world_size]

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from self._data


def _loader(comm: Any) -> Any:
    return DataLoader(Texts(comm.rank, comm.world_size), batch_size=1)


def _loss(texts: torch.Tensor) -> torch.Tensor:
    """Return the losses of texts; a sharded model gathers its weights for it."""
    dist.all_gather([torch.zeros(1) for _ in range(2)], torch.zeros(1))
    return texts


def naive(comm: Any) -> float:
    """Read the share to its end."""
    losses = torch.cat([_loss(texts) for texts in _loader(comm)])
    sums = torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def ours(comm: Any) -> float:
    """Read ``exact(loader, equal_batches=True)``, as docs/samples.md says of sharded models."""
    loader = exact(_loader(comm), equal_batches=True)
    losses = torch.cat([fresh(_loss(texts)) for texts in loader])
    return float(mean(losses.mean(), weight=len(losses), comm=comm))


def right() -> float:
    """Return the mean over all texts."""
    return (TEXTS - 1) / 2
