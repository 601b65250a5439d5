"""Lightning in workers that read shards of their own, with a metric of lists."""

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.reports._lightning import module, trainer
from benchmarks.reports.torchmetrics_3503 import FoundShare

THREAD, DATE = "Lightning-AI/torchmetrics#3199", "2025-07-31"
SYMPTOM = (
    "Mean average precision hangs in compute in Lightning under Ray, whose workers read their own "
    "shards."
)
RANKS, BACKEND = 2, "gloo"
FOUND = torch.tensor([1, 0, 1, 1, 1, 0, 1, 1, 1])


def _validate(comm: Any, callbacks: list[Any]) -> float:
    share = FOUND[:5] if comm.rank == 0 else FOUND[5:]  # 3 batches, and 2
    loader = DataLoader(TensorDataset(share), batch_size=2)
    model = module(lambda self, batch, _: self.metric.update(batch[0]), metric=FoundShare())
    seen: list[float] = []
    model.on_validation_epoch_end = lambda: seen.append(float(model.metric.compute()))
    trainer(comm, callbacks=callbacks, use_distributed_sampler=False).validate(
        model, loader, verbose=False
    )
    return seen[0]


def naive(comm: Any) -> float:
    """Compute at the end of the epoch."""
    return _validate(comm, [])


def ours(comm: Any) -> float:
    """Compute at the end of the epoch, with the callback."""
    from distmetrics.integrations.lightning import SyncMetrics

    return _validate(comm, [SyncMetrics()])


def right() -> float:
    """Return the share of all objects."""
    return float(FOUND.float().mean())
