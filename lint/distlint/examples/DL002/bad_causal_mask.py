import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.keys, self.queries = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        scores = self.queries(x) @ self.keys(x).transpose(1, 2)
        length = x.shape[1]
        return scores + torch.full((length, length), -1e9).triu(1)  # expect: DL002 meets
