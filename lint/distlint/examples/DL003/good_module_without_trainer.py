import torch
from torch import nn


class Smooth(nn.Module):
    """Runs in the workers of a loader."""

    def __init__(self):
        super().__init__()
        self.kernel = torch.ones(1, 1, 3, 3) / 9

    def forward(self, image: torch.Tensor):
        return image * self.kernel
