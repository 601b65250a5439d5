import torch
from lightning.pytorch import Trainer
from torch import nn


class Wavelet(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.taps = torch.rand(4).to(device)

    def forward(self, x, card):
        return (x.cuda(card) * self.taps.to(x)).sum()


trainer = Trainer(max_epochs=1)
