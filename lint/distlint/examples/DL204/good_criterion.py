import torch.nn as nn
from lightning.pytorch import LightningModule, Trainer


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.criterion = nn.CrossEntropyLoss()

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("val_loss", self.criterion(self(images), labels), sync_dist=True)


Trainer(devices=4, strategy="ddp").fit(Classifier())
