"""save_checkpoint on rank 0 alone, before another barrier of all ranks."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.reports._lightning import module, trainer
from distmetrics import guard

THREAD, DATE = "alan-turing-institute/autocast#386", "2026-05-26"
SYMPTOM = (
    "save_checkpoint is called by rank 0 alone, whose barrier pairs with another one of the "
    "others: the job hangs after the fit."
)
RANKS, BACKEND = 2, "gloo"


def _fit(comm: Any) -> None:
    work = trainer(comm, max_epochs=1)
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2)
    work.fit(module(lambda *_: None), loader)
    if work.is_global_zero:
        work.save_checkpoint(Path(tempfile.gettempdir()) / "reports.ckpt")
    work.strategy.barrier("finalize")


def naive(comm: Any) -> float:
    """Fit, and save."""
    _fit(comm)
    return 1.0


def ours(comm: Any) -> float:
    """Fit and save while the guard watches the collectives that are Lightning's."""
    with guard.watch():
        _fit(comm)
    return 1.0


def right() -> float:
    """Return the number of checkpoints."""
    return 1.0
