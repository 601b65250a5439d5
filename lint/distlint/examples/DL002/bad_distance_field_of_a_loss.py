import torch
from torch import nn


class DistanceLoss(nn.Module):
    def forward(self, output: torch.Tensor, target: torch.Tensor):
        fields = torch.from_numpy(self.distances(target.cpu())).float()  # expect: DL002 meets
        error = (output - target) ** 2
        return (error * fields).mean()
