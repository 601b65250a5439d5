"""What the strategies with one process a device share: DistributedDataParallel around the training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from distmetrics.collectives.ops import broadcast
from distmetrics.errors import ConfigurationError
from distmetrics.strategies.base import Strategy, TrainingStep

__all__ = ["DataParallelStrategy"]


class DataParallelStrategy(Strategy):
    """The whole model on every rank; gradients averaged by torch's DistributedDataParallel.

    Args:
        options: passed to ``DistributedDataParallel``: ``find_unused_parameters``, ``bucket_cap_mb`` and so
        on.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    @property
    def local_rank(self) -> int:
        """This rank on its machine; ranks of one machine are numbered in a row."""
        return self.comm().rank % self.devices

    def place(self, module: nn.Module) -> None:
        """Move the module to this rank's device and give it rank 0's weights: scripts may differ in their seeds."""
        super().place(module)
        _copy_from_rank_zero({**dict(module.named_parameters()), **dict(module.named_buffers())}, "weights")

    def setup(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[TrainingStep, list[Optimizer]]:
        """Run the training step inside DistributedDataParallel, so that its backward averages the gradients."""
        return DistributedDataParallel(_TrainingStep(module), **self.options), list(optimizers)

    def prepare(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[Callable[..., Any], list[Optimizer]]:
        """Put the module inside DistributedDataParallel, which refuses one that has nothing to learn."""
        learns = any(parameter.requires_grad for parameter in module.parameters())
        return DistributedDataParallel(module, **self.options) if learns else module, list(optimizers)

    def accumulate(self, step: TrainingStep) -> AbstractContextManager[Any]:
        """Let no gradient travel."""
        context: AbstractContextManager[Any] = step.no_sync()  # type: ignore[attr-defined]
        return context

    def align(self, module: nn.Module) -> None:
        """Give every rank rank 0's buffers: running statistics follow each rank's own data while it trains."""
        _copy_from_rank_zero(dict(module.named_buffers()), "buffers")


class _TrainingStep(nn.Module):
    """The module with its training step as ``forward``, which is the one call that DistributedDataParallel hooks."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any, batch_idx: int) -> Any:
        if batch is None:
            return sum((p * 0).sum() for p in self.module.parameters() if p.requires_grad)
        output = self.module.training_step(batch, batch_idx)  # type: ignore[operator]
        if output is None:
            raise ConfigurationError(
                "training_step returned None: a step that one rank skips leaves the others waiting\n"
                "Do:     return a loss on every rank; `loss * 0` contributes nothing."
            )
        return output


def _copy_from_rank_zero(tensors: dict[str, Tensor], what: str) -> None:
    if not tensors:
        return
    with torch.no_grad():
        for name, value in broadcast(tensors, name=what).items():
            tensors[name].copy_(value)
