"""A world of one rank: every collective returns a copy, as on any other transport."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distmetrics.comm.base import Op, check_parts, check_src


class SingleCommunicator:
    """The communicator of an ordinary script.

    >>> SingleCommunicator().all_gather(torch.ones(2))
    [tensor([1., 1.])]
    """

    rank = 0
    world_size = 1
    device = torch.device("cpu")

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Return a copy of ``x`` in a list."""
        return [x.detach().clone()]

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Return a copy of ``x``: one rank's sum, product, maximum and minimum."""
        return x.detach().clone()

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return a copy of the only part in a list."""
        check_parts(parts, 1)
        return [parts[0].detach().clone()]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Return a copy of ``x``; the only valid source is rank 0."""
        check_src(src, 1)
        return x.detach().clone()

    def barrier(self) -> None:
        """Return at once: there is nobody to wait for."""
