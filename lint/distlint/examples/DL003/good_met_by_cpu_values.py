import torch
from lightning.pytorch import LightningModule
from torch import nn


class Histogram(LightningModule):
    def __init__(self):
        super().__init__()
        self.edges = torch.linspace(0, 1, 11)

    def test_step(self, batch, batch_idx):
        scores = self(batch).cpu()
        return scores[:, None] > self.edges
