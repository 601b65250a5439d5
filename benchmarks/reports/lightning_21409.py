"""Names that depend on the data: each rank logs those of its own samples."""

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.reports._lightning import module, trainer

THREAD, DATE = "Lightning-AI/pytorch-lightning#21409", "2025-12-07"
SYMPTOM = (
    "Ranks log other names, and values are averaged with those of another name without a word."
)
RANKS, BACKEND = 2, "gloo"
NUMBERS = torch.arange(8)  # of which one rank has the even ones, and one the odd ones


def _step(self: Any, batch: Any, batch_idx: int) -> None:
    (x,) = batch
    self.log("loss", x.float().mean(), sync_dist=True)
    if x[0] % 2 == 0:
        self.log("even", torch.tensor(0.5), sync_dist=True)
    else:
        self.log("odd", torch.tensor(0.7), sync_dist=True)


def _validate(comm: Any, callbacks: list[Any]) -> float | None:
    model, loader = module(_step), DataLoader(TensorDataset(NUMBERS), batch_size=1)
    (logged,) = trainer(comm, callbacks=callbacks).validate(model, loader, verbose=False)
    return float(logged["odd"]) if "odd" in logged else None


def naive(comm: Any) -> float | None:
    """Log what the batch is."""
    return _validate(comm, [])


def ours(comm: Any) -> float | None:
    """Log it with the callback."""
    from distmetrics.integrations.lightning import SyncMetrics

    return _validate(comm, [SyncMetrics()])


def right() -> float:
    """Return what odd samples log."""
    return 0.7
