"""A model whose forward pass needs all ranks, as that of a sharded one does."""

import torch
import torch.distributed as dist
from torch import Tensor


class Gathered:
    """y = w·x, of which each rank has a part of w; the forward pass brings them together."""

    def __init__(self, world_size: int, rank: int) -> None:
        self.parts = [torch.zeros(1) for _ in range(world_size)]
        self.part = torch.tensor([2.0 / world_size])

    def __call__(self, x: Tensor) -> Tensor:
        """Return the loss of each sample."""
        dist.all_gather(self.parts, self.part)
        return torch.cat(self.parts).sum() * x
