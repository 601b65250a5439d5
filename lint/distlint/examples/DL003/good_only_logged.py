import torch
from lightning.pytorch import LightningModule
from torch import nn


class Ages(LightningModule):
    def __init__(self):
        super().__init__()
        self.bins = torch.arange(0, 100, 10)
        self.net = nn.Linear(8, 10)

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.print("bins", len(self.bins), self.bins[1])
        return nn.functional.cross_entropy(self.net(x), y)
