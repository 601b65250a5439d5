import torch
from lightning.pytorch import LightningModule


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def training_step(self, batch, batch_idx):
        if self.current_epoch == 0:
            self.outputs.append(batch[1])
        return self.loss(batch)

    def on_train_epoch_end(self):
        print("labels", torch.cat(self.outputs).bincount())
