import torch
from lightning.pytorch import LightningModule
from torch import nn


class Permuted(LightningModule):
    def __init__(self, width):
        super().__init__()
        self.order = torch.randperm(width)
        self.layer = nn.Linear(width, width)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[:, self.order]).mean()
