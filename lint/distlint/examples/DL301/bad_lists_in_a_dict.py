import torch
from lightning.pytorch import LightningModule


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.seen = {"scores": [], "labels": []}

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.seen["scores"].append(self(images))  # expect: DL301 self.seen grows in each validation
        self.seen["labels"].append(labels)

    def on_validation_epoch_end(self):
        scores, labels = torch.cat(self.seen["scores"]), torch.cat(self.seen["labels"])
        print("accuracy", (scores.argmax(-1) == labels).float().mean())
