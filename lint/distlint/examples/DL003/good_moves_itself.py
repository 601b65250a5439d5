import torch
from lightning.pytorch import LightningModule
from torch import nn


class WithTable(LightningModule):
    def __init__(self):
        super().__init__()
        self.table = torch.eye(3)

    def _apply(self, fn):
        self.table = fn(self.table)
        return super()._apply(fn)

    def training_step(self, batch, batch_idx):
        return (batch @ self.table).mean()
