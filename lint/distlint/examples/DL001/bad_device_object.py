import torch
from lightning.pytorch import LightningModule
from torch import nn


class Sampler(LightningModule):
    def sample(self, count):
        device = torch.device("cuda")  # expect: DL001 self.device
        latent = torch.randn(count, 16, device=device)
        return self.decoder(latent)
