import torch
from lightning.pytorch import LightningModule
from torch import nn


class Lesions(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Conv2d(3, 2, 1)
        self.weights = torch.tensor([0.1, 0.9])  # expect: DL003 stays

    def training_step(self, batch, batch_idx):
        image, mask = batch
        return nn.functional.cross_entropy(self.net(image), mask, weight=self.weights)
