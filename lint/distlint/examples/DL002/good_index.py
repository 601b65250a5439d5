import torch
from torch import nn


class Mixup(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        order = torch.randperm(x.shape[0])
        x[:, 0] = torch.zeros(x.shape[0])
        return self.layer(0.7 * x + 0.3 * x[order])
