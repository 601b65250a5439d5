import lightning.pytorch as pl
import torch
from torch import nn


class Fourier(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.frequencies = torch.exp(torch.linspace(0.0, 4.0, width))  # expect: DL003 stays
        self.out = nn.Linear(width, width)

    def forward(self, time: torch.Tensor):
        return self.out(torch.sin(time[:, None] * self.frequencies))


trainer = pl.Trainer(max_epochs=1)
