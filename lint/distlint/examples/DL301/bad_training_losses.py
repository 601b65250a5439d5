import torch
from lightning.pytorch import LightningModule


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.losses: list = list()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.losses.append(loss)  # expect: DL301 self.losses grows in each training step
        return loss

    def on_train_epoch_end(self):
        print("mean loss", torch.stack(self.losses).mean())
