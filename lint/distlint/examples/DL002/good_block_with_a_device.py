import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        with torch.device(x.device):
            offset = torch.zeros(3)
        return self.layer(x) + offset
