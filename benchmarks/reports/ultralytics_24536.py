"""One rank at the validation, and the others in a batch before it.

The thread was closed without a cause; here a rank has a batch fewer.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchmetrics import MeanMetric

from distmetrics import sync_and_compute

THREAD, DATE = "ultralytics/ultralytics#24536", "2026-05-19"
SYMPTOM = "Training hangs in the last batches before the first validation."
RANKS, BACKEND = 2, "gloo"


def _train(comm: Any) -> MeanMetric:
    """Train, and evaluate a share."""
    model = DistributedDataParallel(nn.Linear(1, 1))
    for _ in range(4 - comm.rank):
        model(torch.ones(2, 1)).sum().backward()
    metric = MeanMetric()
    metric.update(torch.tensor([1.0, 2.0]) + comm.rank)
    return metric


def naive(comm: Any) -> float:
    """Train, and compute a metric that syncs itself."""
    return float(_train(comm).compute())


def ours(comm: Any) -> float:
    """Train, and sync the metric."""
    return float(sync_and_compute(_train(comm)))


def right() -> float:
    """Return the mean over both shares."""
    return 2.0
