"""A run that draws random numbers everywhere, and may be killed in the middle of an epoch."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import BinaryAUROC

from distmetrics.train import ModelCheckpoint, Trainer
from tests.train.models import Logistic, samples


class Noisy(Logistic):
    """Draws from every generator, and keeps a metric over the whole epoch of training."""

    def __init__(self, kill_at=None):
        super().__init__()
        self.dropout = nn.Dropout(0.3)
        self.train_auroc = BinaryAUROC()
        self.kill_at = kill_at

    def forward(self, x):
        return super().forward(self.dropout(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        x = x + 0.1 * random.random() + 0.1 * float(np.random.rand()) + 0.1 * torch.randn(1, device=x.device)
        loss = super().training_step([x, y], batch_idx)
        self.train_auroc.update(self(x).sigmoid(), y.int())
        self.log("train_auroc", self.train_auroc)
        return {"loss": loss, "weight": 1 + batch_idx % 3, "seen": x.sum()}

    def training_epoch_end(self, outputs):
        self.log("seen", torch.stack([out["seen"] for out in outputs]).sum(), reduce_fx="sum")

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.kill_at == (self.current_epoch, batch_idx):
            os.kill(os.getpid(), signal.SIGKILL)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Augmented(torch.utils.data.Dataset):
    """Draws when an item is fetched."""

    def __init__(self, count, seed=0):
        self.data = samples(count, seed=seed)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, y = self.data[index]
        return x + 0.01 * torch.randn(4), y


def run(
    folder, *, kill_at=None, ckpt_path=None, strategy="single", devices=1, epochs=2, batch=4, loading=None, **flags
):
    """Train, and return all there is to compare."""
    module = Noisy(kill_at)
    keeper = ModelCheckpoint(every_n_train_steps=2, save_top_k=-1, filename="{step}", save_last=True, dirpath=folder)
    trainer = Trainer(
        strategy=strategy,
        devices=devices,
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=[keeper],
        seed=5,
        **flags,
    )
    train = DataLoader(Augmented(24), batch_size=batch, shuffle=True, **loading or {})
    trainer.fit(module, train, DataLoader(samples(7, seed=1), batch_size=2), ckpt_path=ckpt_path)
    weights = [value for parameter in module.parameters() for value in parameter.flatten().tolist()]
    logged = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
    return {"weights": weights, "logged": logged, "step": trainer.global_step, "rank": trainer.global_rank}


def main() -> None:
    folder, devices, mode = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    found = run(
        folder,
        kill_at=(1, 4 // devices) if mode == "kill" else None,
        ckpt_path="last" if mode == "resume" else None,
        strategy="single" if devices == 1 else "ddp",
        devices=devices,
        num_sanity_val_steps=1,
    )
    (folder / f"{mode}{found.pop('rank')}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
