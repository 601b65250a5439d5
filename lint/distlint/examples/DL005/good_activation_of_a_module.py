import torch
from torch import nn


class Promoter(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = lambda x: x * torch.sigmoid(x)
        self.norms = [lambda x: x, nn.ReLU()]
