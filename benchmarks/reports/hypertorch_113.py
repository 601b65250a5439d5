"""AUROC as a function, batch by batch."""

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC
from torchmetrics.functional import auroc

from benchmarks.reports._lightning import module, trainer

THREAD, DATE = "hypernetwork-research-group/hypertorch#113", "2026-03-16"
SYMPTOM = "AUROC is computed a batch and averaged over batches and ranks."
RANKS, BACKEND = 2, "gloo"
SCORES = torch.tensor([0.1, 0.8, 0.4, 0.35, 0.9, 0.6, 0.2, 0.7])
WANTED = torch.tensor([0, 1, 1, 0, 1, 0, 1, 0])


def _validate(comm: Any, step: Any, callbacks: list[Any]) -> float:
    model = module(step, auroc=BinaryAUROC())
    loader = DataLoader(TensorDataset(SCORES, WANTED), batch_size=2)
    (logged,) = trainer(comm, callbacks=callbacks).validate(model, loader, verbose=False)
    return float(logged["auroc"])


def _functional(self: Any, batch: Any, batch_idx: int) -> None:
    scores, wanted = batch
    self.log("auroc", auroc(scores, wanted, task="binary"), sync_dist=True)


def _object(self: Any, batch: Any, batch_idx: int) -> None:
    self.auroc.update(*batch)
    self.log("auroc", self.auroc)


def naive(comm: Any) -> float:
    """Log the function's value."""
    return _validate(comm, _functional, [])


def ours(comm: Any) -> float:
    """Log a metric object, as the table of tools says, with the callback."""
    from distmetrics.integrations.lightning import SyncMetrics

    return _validate(comm, _object, [SyncMetrics()])


def right() -> float:
    """Rank all samples."""
    metric = BinaryAUROC()
    metric.update(SCORES, WANTED)
    return float(metric.compute())
