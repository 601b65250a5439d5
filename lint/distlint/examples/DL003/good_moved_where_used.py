import torch
from lightning.pytorch import LightningModule
from torch import nn


class Classifier(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.mean = torch.zeros(3)

    def forward(self, x):
        return self.net(x.float() - self.mean.to(x.device))
