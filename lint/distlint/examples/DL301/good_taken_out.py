import torch
from lightning.pytorch import LightningModule


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def validation_step(self, batch, batch_idx):
        self.outputs.append(self(batch))

    def on_validation_epoch_end(self):
        while self.outputs:
            print(self.outputs.pop().mean())
