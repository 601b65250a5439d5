import torch
from torch import nn


class Depth(nn.Module):
    """Runs in the workers of a loader."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, image):
        return image * torch.rand(image.shape[0], 1, 1) * self.scale
