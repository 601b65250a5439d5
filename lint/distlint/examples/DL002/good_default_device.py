import torch
from torch import nn

torch.set_default_device("cuda")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) + torch.zeros(3)
