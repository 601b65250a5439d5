import torch
from lightning.pytorch import LightningModule
from torch import nn


class Lookup(LightningModule):
    def __init__(self, size):
        super().__init__()
        self.table = torch.rand(size, 4).to(self.device)

    def training_step(self, batch, batch_idx):
        self.table = self.table.to(batch.device)
        return self.loss(self.table[batch])
