import torch
from lightning.pytorch import Trainer
from torch import nn


class FrequencyLoss(nn.Module):
    def mask(self, height, width):
        mask = torch.ones(height, width).cuda()  # expect: DL001 an input
        mask[: height // 4] = 0
        return mask

    def forward(self, output, target):
        return (self.mask(*output.shape[-2:]) * (output - target)).abs().mean()


trainer = Trainer(max_steps=1000)
