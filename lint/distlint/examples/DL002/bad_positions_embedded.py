import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, vocabulary, length, width):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1]).unsqueeze(0)  # expect: DL002 a layer
        return self.tokens(ids) + self.positions(positions)
