import torch
from torch import nn


class Masked(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x, mask=None):
        if mask is None:
            mask = torch.ones(x.shape[1])
        if x.is_cuda:
            mask = mask.cuda()
        return self.layer(x) * mask
