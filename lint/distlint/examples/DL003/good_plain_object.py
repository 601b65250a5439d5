import torch
from lightning.pytorch import LightningModule
from torch import nn


class Normalize:
    def __init__(self):
        self.mean = torch.zeros(3)

    def forward(self, image):
        return image.float() - self.mean
