import lightning.pytorch as pl
import torch
from torch import nn


class Tokens(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, width))

    def forward(self, x):
        token = self.token.expand(len(x), -1, -1).cuda()  # expect: DL001 an input
        return torch.cat((token, x), dim=1)


def main(model, data):
    pl.Trainer(max_epochs=3).fit(model, data)
