"""What many training scripts look like. It runs on one GPU; on two it hangs, or logs numbers that
are wrong.

The demo hands this file to distlint. Do not copy from it.
"""

import lightning as L
import torch
from sklearn.metrics import f1_score
from torch import nn
from torch.utils.data import DataLoader


class DigitsData(L.LightningDataModule):
    def __init__(self, digits):
        super().__init__()
        self.digits = digits
        self.transform = lambda x: x / 16.0

    def val_dataloader(self):
        return DataLoader(self.digits, batch_size=32)


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.outputs = []

    def forward(self, x):
        return self.net(x.cuda())

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        predicted = self(x).argmax(dim=1)
        self.outputs.append(predicted)
        f1 = f1_score(y.cpu(), predicted.cpu(), average="macro")
        self.log("val_f1", f1, sync_dist=True)

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero:
            everything = self.all_gather(torch.cat(self.outputs))
            print("validated", everything.numel(), "samples")
        self.outputs.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
