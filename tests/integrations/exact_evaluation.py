"""A Lightning module that logs a number in every way, and a trainer for it; imported by every process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, TensorDataset
from torchmetrics import MetricCollection, SumMetric
from torchmetrics.classification import BinaryAUROC, BinaryF1Score

from distmetrics.data import fresh
from tests.integrations.modules import elastic

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Rows(IterableDataset[Any]):
    """Rows in a stream, the same on every rank."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


def dataset(length: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(length, 3, generator=generator)
    return TensorDataset(x, (x.sum(1) + torch.randn(length, generator=generator) > 0).long())


def make(lightning: Any) -> Any:
    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(3, 1)
            self.metrics = MetricCollection({"f1": BinaryF1Score(), "auroc": BinaryAUROC()})
            self.count = SumMetric()
            self.rows: list[int] = []
            self.steps: list[float] = []

        def step(self, batch: Any, suffix: str = "") -> torch.Tensor:
            x, y = batch
            p = self.layer(x).squeeze(1).sigmoid()
            losses = torch.nn.functional.binary_cross_entropy(p, y.float(), reduction="none")
            for name in ("mean", "sum", "max", "min"):  # of any batches the same
                value = getattr(losses, name)()
                self.log(name + suffix, value, reduce_fx=name, sync_dist=True, on_step=False, on_epoch=True)
            return losses.mean()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.step(batch, "_train") * 0

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            loss = self.step(batch)
            x, y = batch
            self.metrics.update(self.layer(x).squeeze(1).sigmoid(), y)
            self.count.update(len(y))
            self.rows.append(len(fresh(y)))
            self.log("given", loss, sync_dist=True, batch_size=2 * len(y))
            self.log("twice", loss, sync_dist=True, on_step=True, on_epoch=True)
            results = self.trainer._results
            place = "" if results.dataloader_idx is None else f".{results.dataloader_idx}"
            self.steps.append(float(results[f"{self._current_fx_name}.twice{place}"]._forward_cache))

        def on_validation_epoch_end(self) -> None:
            self.log_dict(self.metrics.compute())
            self.log("count", self.count.compute())
            self.log("ranks", 1.0, reduce_fx="sum", sync_dist=True)
            self.metrics.reset()
            self.count.reset()

        test_step = validation_step
        on_test_epoch_end = on_validation_epoch_end

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Model()


class Talks(torch.nn.Linear):
    """A layer whose forward pass needs all ranks, as a sharded one does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(torch.ones(1))
        return super().forward(x)


def trainer_of(comm: Any, lightning: Any, callbacks: list[Any], **options: Any) -> Any:
    if comm.world_size > 1:
        os.environ |= elastic(comm)
    warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
    options = {"strategy": "ddp" if comm.world_size > 1 else "auto", "num_sanity_val_steps": 0} | options
    return lightning.Trainer(devices=comm.world_size, accelerator="cpu", callbacks=callbacks, **QUIET, **options)
