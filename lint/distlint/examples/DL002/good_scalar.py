import torch
from lightning.pytorch import LightningModule


class Mean(LightningModule):
    def training_step(self, batch, batch_idx):
        scale, start = torch.tensor(0.5), torch.zeros(())
        return (self(batch) * scale + start).mean()
