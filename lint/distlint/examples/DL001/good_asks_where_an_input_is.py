import torch
from lightning.pytorch import LightningModule
from torch import nn


class Attention(LightningModule):
    def forward(self, x):
        mask = self.mask(x.shape[1])
        if x.is_cuda:
            mask = mask.cuda()
        return self.layer(x, mask)
