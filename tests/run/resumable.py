"""A run that draws random numbers everywhere; at the top level, for ranks that are started."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import BinaryAUROC

from tests.run.models import Logistic, loader, samples
from tests.run.threads import trainer


class Noisy(Logistic):
    """Draws from every generator, and keeps a metric over the whole epoch of training."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.3)
        self.train_auroc = BinaryAUROC()

    def forward(self, x):
        return super().forward(self.dropout(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        drawn = random.random() + float(np.random.rand()) + torch.randn(1, device=x.device)
        x = x + 0.1 * drawn
        loss = super().training_step([x, y], batch_idx)
        self.train_auroc.update(self(x).sigmoid(), y.int())
        self.log("train_auroc", self.train_auroc)
        return {"loss": loss, "weight": 1 + batch_idx % 3, "seen": x.sum()}

    def training_epoch_end(self, outputs):
        seen = torch.stack([out["seen"] for out in outputs]).sum()
        self.log("seen", seen, reduce_fx="sum")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.9)
        scheduler = {"scheduler": schedule, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class Augmented(torch.utils.data.Dataset):
    """Draws when an item is fetched."""

    def __init__(self, count):
        self.data = samples(count)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, y = self.data[index]
        return x + 0.01 * torch.randn(4), y


def run(callbacks, *, ckpt_path=None, loading=None, **flags):
    """Train, and return all there is to compare."""
    module = Noisy()
    made = trainer(**{"max_epochs": 2, "callbacks": callbacks, "seed": 5} | flags)
    train = DataLoader(Augmented(24), batch_size=4, shuffle=True, **loading or {})
    made.fit(module, train, loader(7, 2, seed=1), ckpt_path=ckpt_path)
    weights = [value for parameter in module.parameters() for value in parameter.flatten().tolist()]
    logged = {name: float(value) for name, value in sorted(made.callback_metrics.items())}
    return {"weights": weights, "logged": logged, "step": made.global_step}
