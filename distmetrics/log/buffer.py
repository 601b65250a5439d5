"""Sums and maxima on one device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Buffer:
    """Sums and maxima on one device, float64, and whether a weight made no sense, by sums."""

    sums: Tensor
    maxima: Tensor
    flaws: Tensor

    @classmethod
    @torch.inference_mode(False)  # else it could not be added to when that mode ends
    def on(cls, device: torch.device) -> Buffer:
        """Return an empty buffer."""
        return cls(*(torch.empty(0, dtype=torch.float64, device=device) for _ in range(3)))

    def grow(self, sums: int, maxima: int) -> None:
        """Make room, with what counts as nothing."""
        if sums > len(self.sums):
            self.sums = _grown(self.sums, sums, 0.0)
            self.flaws = _grown(self.flaws, sums, 0.0)
        if maxima > len(self.maxima):
            self.maxima = _grown(self.maxima, maxima, -math.inf)

    def clear(self) -> None:
        """Begin anew."""
        self.sums.zero_()
        self.flaws.zero_()
        self.maxima.fill_(-math.inf)


@torch.inference_mode(False)
def _grown(x: Tensor, size: int, filler: float) -> Tensor:
    result = x.new_full((max(size, 2 * len(x)),), filler)
    result[: len(x)] = x
    return result
