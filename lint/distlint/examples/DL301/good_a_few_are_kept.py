import torch
from lightning.pytorch import LightningModule


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def validation_step(self, batch, batch_idx):
        if len(self.outputs) < 8:
            self.outputs.append(batch[0])

    def on_validation_epoch_end(self):
        print(torch.stack(self.outputs).shape)
