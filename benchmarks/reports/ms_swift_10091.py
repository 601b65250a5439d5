"""A rank correlation of ranks' shares."""

from typing import Any

import torch
from torchmetrics.functional import spearman_corrcoef
from torchmetrics.regression import SpearmanCorrCoef

from distmetrics import sync_and_compute

THREAD = "modelscope/ms-swift#10091"
DATE = "2026-09-09"
SYMPTOM = "Spearman correlation of an evaluation is that of each rank's own share"
RANKS, BACKEND = 3, "threads"
SHARES = (slice(0, 5), slice(5, 12), slice(12, 12))  # the last rank has nothing


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(12, generator=generator)
    return x, x + torch.rand(12, generator=generator)


def naive(comm: Any) -> float | None:
    """Compute on the share."""
    x, y = (each[SHARES[comm.rank]] for each in _data())
    return float(spearman_corrcoef(x, y)) if len(x) else None


def ours(comm: Any) -> float:
    """Sync the metric."""
    metric = SpearmanCorrCoef()
    x, y = (each[SHARES[comm.rank]] for each in _data())
    if len(x):
        metric.update(x, y)
    return float(sync_and_compute(metric, comm=comm))


def right() -> float:
    """Compute on all data."""
    return float(spearman_corrcoef(*_data()))
