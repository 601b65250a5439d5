import torch
from lightning.pytorch import LightningModule
from torch import nn


class Sampler(LightningModule):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder.to(self.device)
        self.register_buffer("bank", torch.rand(10, 2))
        self.reward = torch.tensor(0.0, device=self.device)
        with torch.no_grad():
            width = self.encoder(torch.zeros(1, 8, device=self.device)).shape[-1]
        self.head = nn.Linear(width, 2)
