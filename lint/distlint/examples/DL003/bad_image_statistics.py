import torch
from lightning.pytorch import LightningModule
from torch import nn


class Classifier(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.mean = torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1)  # expect: DL003 stays
        self.std = torch.tensor([0.2, 0.2, 0.2]).view(1, 3, 1, 1)  # expect: DL003 stays

    def forward(self, image):
        batch = image.float() / 255
        return self.net((batch - self.mean) / self.std)
