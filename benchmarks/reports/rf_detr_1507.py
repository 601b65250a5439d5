"""21 images on 2 ranks under Lightning, whose sampler repeats one."""

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassF1Score

from benchmarks.reports._lightning import module, trainer

THREAD, DATE = "roboflow/rf-detr#1507", "2026-09-22"
SYMPTOM = "Multi-GPU evaluation counts the images that the sampler repeats: 22 of 21."
RANKS, BACKEND = 2, "gloo"
WANTED = torch.arange(21) % 3
FOUND = torch.where(torch.arange(21) % 10 == 0, 2, WANTED)


def _validate(comm: Any, callbacks: list[Any]) -> float:
    loader = DataLoader(TensorDataset(FOUND, WANTED), batch_size=4)
    model = module(lambda self, batch, _: self.f1.update(*batch), f1=MulticlassF1Score(3))
    model.on_validation_epoch_end = lambda: model.log("f1", model.f1)
    (logged,) = trainer(comm, callbacks=callbacks).validate(model, loader, verbose=False)
    return float(logged["f1"])


def naive(comm: Any) -> float:
    """Validate."""
    return _validate(comm, [])


def ours(comm: Any) -> float:
    """Validate with the callback."""
    from distmetrics.integrations.lightning import SyncMetrics

    return _validate(comm, [SyncMetrics()])


def right() -> float:
    """Score the 21 images."""
    metric = MulticlassF1Score(3)
    metric.update(FOUND, WANTED)
    return float(metric.compute())
