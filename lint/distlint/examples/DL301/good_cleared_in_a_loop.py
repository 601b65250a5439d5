import torch
from lightning.pytorch import LightningModule


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.scores, self.labels = [], []

    def validation_step(self, batch, batch_idx):
        self.scores.append(self(batch[0]))
        self.labels.append(batch[1])

    def on_validation_epoch_end(self):
        scores, labels = torch.cat(self.scores), torch.cat(self.labels)
        print("accuracy", (scores.argmax(-1) == labels).float().mean())
        for kept in (self.scores, self.labels):
            kept.clear()
