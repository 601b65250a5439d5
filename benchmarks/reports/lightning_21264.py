"""A progress bar that shows the value of a metric, on the rank that draws it.

Lightning's own bar was reported. Here a bar of one's own does what that one did: rank 0 computes.
"""

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import SumMetric
from torchmetrics.classification import BinaryConfusionMatrix

from benchmarks.reports._lightning import module, trainer

THREAD, DATE = "Lightning-AI/pytorch-lightning#21264", "2025-10-07"
SYMPTOM = "The progress bar computes metrics on one rank, which waits for the others in their sync."
RANKS, BACKEND = 2, "gloo"


def _bar() -> Any:
    import lightning.pytorch as lightning

    class Bar(lightning.Callback):
        def on_validation_epoch_end(self, trainer: Any, model: Any) -> None:
            if trainer.is_global_zero:
                self.shown = model.matrix.compute()

    return Bar()


def _step(self: Any, batch: Any, batch_idx: int) -> None:
    self.count.update(len(batch[0]))
    self.matrix.update(batch[0], batch[0])


def _validate(comm: Any, callbacks: list[Any]) -> float:
    loader = DataLoader(TensorDataset(torch.arange(7) % 2), batch_size=2)
    matrix = BinaryConfusionMatrix()
    model = module(_step, count=SumMetric(), matrix=matrix)
    model.on_validation_epoch_end = lambda: model.log("count", model.count)
    (logged,) = trainer(comm, callbacks=callbacks).validate(model, loader, verbose=False)
    return float(logged["count"])


def naive(comm: Any) -> float:
    """Validate with a bar."""
    return _validate(comm, [_bar()])


def ours(comm: Any) -> float:
    """Validate with a bar and the callback."""
    from distmetrics.integrations.lightning import SyncMetrics

    return _validate(comm, [SyncMetrics(), _bar()])


def right() -> float:
    """Return the number of samples."""
    return 7.0
