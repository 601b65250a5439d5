import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        steps = torch.arange(x.shape[1], device=x.device)
        keep = torch.ones(x.shape[1]).to(x)
        return self.layer(x + steps) * keep + x.new_zeros(3) + torch.zeros_like(x)
