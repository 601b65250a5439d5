"""A Lightning module as users write it, and what a rank runs; imported by every process."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryF1Score, BinaryPrecision, BinaryRecall

from distmetrics.testing.recording import counted_torch_calls

SEEN = 40


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SEEN, 3, generator=generator)
    return x, (x.sum(1) + torch.randn(SEEN, generator=generator) > 0).long()


def loader(rank: int, world_size: int) -> DataLoader[Any]:
    """Uneven shards, cut where no padding would make them even; equal numbers of batches, as DDP needs."""
    x, y = data()
    start, stop = (0, SEEN) if world_size == 1 else ((0, 14), (14, SEEN))[rank]
    size = 40 if world_size == 1 else -(-(stop - start) // 2)
    return DataLoader(TensorDataset(x[start:stop], y[start:stop]), batch_size=size)


def make(lightning: Any, resets: bool = False) -> Any:
    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(3, 1)
            self.train_f1 = BinaryF1Score()
            self.many = MetricCollection([BinaryF1Score(), BinaryPrecision(), BinaryRecall(), BinaryAUROC()])
            self.by_hand = BinaryRecall()
            self.kept = BinaryRecall()
            self.seen: list[float] = []
            self.counts: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).squeeze(1).sigmoid()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = batch
            p = self(x)
            self.train_f1.update(p, y)
            self.log("train_f1", self.train_f1, on_step=False, on_epoch=True)
            return torch.nn.functional.binary_cross_entropy(p, y.float()) * 0

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            x, y = batch
            p = self(x)
            self.many.update(p, y)
            self.log_dict(self.many, on_step=False, on_epoch=True)
            self.by_hand.update(p, y)
            self.kept.update(p, y)

        def on_validation_epoch_end(self) -> None:
            self.seen.append(float(self.by_hand.compute()))
            self.by_hand.reset()

        def on_validation_start(self) -> None:
            self.counts.append(int(self.kept._update_count))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Model()


def elastic(comm: Any) -> dict[str, str]:
    """What torchrun tells a process; the group that is there already is then used."""
    return {
        "RANK": str(comm.rank),
        "LOCAL_RANK": str(comm.rank),
        "WORLD_SIZE": str(comm.world_size),
        "LOCAL_WORLD_SIZE": str(comm.world_size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "TORCHELASTIC_RUN_ID": "test",
    }


def fit(comm: Any, with_callback: bool) -> dict[str, Any]:
    """Train two epochs with validation in a group that is there already; what was logged, and what it cost."""
    import lightning.pytorch as lightning

    from distmetrics.integrations.lightning import SyncMetrics

    if comm.world_size > 1:
        os.environ |= elastic(comm)
    warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
    model = make(lightning)
    trainer = lightning.Trainer(
        strategy="ddp" if comm.world_size > 1 else "auto",
        devices=comm.world_size,
        accelerator="cpu",
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[SyncMetrics()] if with_callback else [],
    )
    batches = loader(comm.rank, comm.world_size)
    with counted_torch_calls() as calls:
        trainer.fit(model, batches, batches)
    return {
        "logged": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "by hand": model.seen,
        "updates": (model.counts, int(model.kept._update_count), int(model.by_hand._update_count)),
        "gathers": calls["all_gather"],
    }
