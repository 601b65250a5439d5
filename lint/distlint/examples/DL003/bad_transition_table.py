import torch
from lightning.pytorch import LightningModule
from torch import nn


class Crf(LightningModule):
    def __init__(self, states):
        super().__init__()
        self.net = nn.Linear(8, states)
        self.transitions = torch.eye(states)  # expect: DL003 stays

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x) @ self.transitions
        return nn.functional.cross_entropy(scores, y)
