import torch
from lightning.pytorch import LightningModule, Trainer


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.errors = []

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        self.errors.append((self(inputs) - targets).abs().mean())

    def on_validation_epoch_end(self):
        error = torch.stack(self.errors).mean()
        self.errors.clear()
        self.log("val_mae", error)  # expect: DL202 this value covers rank 0's share of the data alone


Trainer(accelerator="gpu", devices=8, num_nodes=2).fit(Regressor())
