"""Means of unequal shares: Lightning rounds the mean number of samples a rank down."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.reports._lightning import module, trainer

THREAD, DATE = "Lightning-AI/pytorch-lightning#21838", "2026-07-16"
SYMPTOM = (
    "Means that are logged with sync_dist are too large where ranks log unequal numbers of samples."
)
RANKS, BACKEND = 2, "gloo"
LOSSES = torch.tensor([0.5, 1.5, 2.0, 4.0, 1.0])


class Shard(IterableDataset[Tensor]):
    """The losses of one rank: 3 of them, and 2."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Tensor]:
        return iter(LOSSES[self.rank :: RANKS])


def _validate(comm: Any, callbacks: list[Any]) -> float:
    loader = DataLoader(Shard(comm.rank), batch_size=1)
    model = module(
        lambda self, batch, _: self.log(
            "loss", batch.mean(), on_epoch=True, sync_dist=True, batch_size=len(batch)
        )
    )
    (logged,) = trainer(comm, callbacks=callbacks).validate(model, loader, verbose=False)
    return float(logged["loss"])


def naive(comm: Any) -> float:
    """Log the loss of each batch."""
    return _validate(comm, [])


def ours(comm: Any) -> float:
    """Log it with the callback."""
    from distmetrics.integrations.lightning import SyncMetrics

    return _validate(comm, [SyncMetrics()])


def right() -> float:
    """Return the mean of all losses."""
    return float(LOSSES.mean())
