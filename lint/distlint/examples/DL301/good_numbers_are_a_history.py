import torch
from lightning.pytorch import LightningModule


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.history = []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.history.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        print("losses so far", self.history[-5:])
