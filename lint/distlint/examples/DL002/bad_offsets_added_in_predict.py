import torch
from lightning.pytorch import LightningModule


class Forecast(LightningModule):
    def predict_step(self, batch, batch_idx):
        return self(batch + torch.ones(3))  # expect: DL002 meets
