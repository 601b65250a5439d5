import torch
from lightning.pytorch import LightningModule
from torch import nn


class Detector(LightningModule):
    def __init__(self, anchors):
        super().__init__()
        self.head = nn.Linear(16, 4)
        self.anchors = torch.rand(anchors, 4)  # expect: DL003 stays

    def forward(self, features):
        boxes = self.head(features.flatten(2))
        return boxes + self.anchors
