import torch
from torch import nn


class VideoEncoder(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.length = length
        self.project = nn.Linear(width, width)

    def forward(self, frames):
        features = self.project(frames)
        missing = self.length - frames.size(1)
        padding = torch.zeros(frames.size(0), missing, frames.size(2))  # expect: DL002 meets
        return torch.cat([features, padding], dim=1)
