import torch
from lightning.pytorch import LightningModule
from torch import nn


class Stereo(LightningModule):
    def test_step(self, batch, batch_idx):
        left = batch["left"].cuda()  # expect: DL001 self.device
        right = batch["right"].cuda()  # expect: DL001 self.device
        return self(left, right)
