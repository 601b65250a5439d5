"""A world of one rank: every collective is the identity, with the same copies as on any other
transport.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distmetrics.comm.base import Meanwhile, Op, check_parts, check_src


class SingleCommunicator:
    """The communicator of an ordinary script.

    >>> SingleCommunicator().all_gather(torch.ones(2))
    [tensor([1., 1.])]
    """

    rank = 0
    world_size = 1
    device = torch.device("cpu")

    def all_gather(self, x: Tensor, meanwhile: Meanwhile | None = None) -> list[Tensor]:
        """``[x]``, copied."""
        if meanwhile is not None:
            meanwhile()
        return [x.detach().clone()]

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """``x``, copied: one rank's sum, product, maximum and minimum are its value."""
        return x.detach().clone()

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """``[parts[0]]``, copied."""
        check_parts(parts, 1)
        return [parts[0].detach().clone()]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """``x``, copied; the only valid source is rank 0."""
        check_src(src, 1)
        return x.detach().clone()

    def barrier(self) -> None:
        """Nobody to wait for."""
