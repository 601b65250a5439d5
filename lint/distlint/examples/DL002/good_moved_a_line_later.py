import torch
from lightning.pytorch import LightningModule


class Noise(LightningModule):
    def training_step(self, batch, batch_idx):
        noise = torch.randn(3, 8)
        kind = torch.ones(8).type(batch.type())
        noise = noise.to(self.device)
        return (self(batch + noise) * kind).mean()
