"""The gradient of a mean whose weight differs by rank and micro-batch, as of tokens or boxes.

A loss over tokens is a mean over those of its micro-batch. Ranks and accumulated micro-batches have
different numbers of tokens, so the mean of their gradients is not that of one process. Here each
loss is multiplied by its weight, and the sum of gradients divided by the sum of all weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from distmetrics.arguments import is_number
from distmetrics.collectives.ops import all_reduce
from distmetrics.errors import ConfigurationError, InputError
from distmetrics.strategies.base import Strategy


class WeightedSum:
    """The gradients of a module while they are a sum of weighted ones, and once they are a mean."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.clear()

    def clear(self) -> None:
        """Begin anew: the gradients were cleared, or an optimizer has stepped with them."""
        self.weight = 0.0  # of this rank's losses since then
        self.is_weighted: bool | None = None  # None before the first loss
        self.factor: float | None = None  # that has made a mean of the sum

    def note_cleared(self, cleared: set[Tensor]) -> None:
        """Note that an optimizer has cleared its parameters' gradients; others may have some."""
        if all(p.grad is None for p in self.module.parameters() if p not in cleared):
            self.clear()

    def open(self, is_weighted: bool, rank: int) -> None:
        """Let a loss add to the gradients, which are a sum again; or begin anew without any."""
        if self.factor is not None:
            if all(parameter.grad is None for parameter in self.module.parameters()):
                self.clear()
            else:
                self.multiply(1 / self.factor)
                self.factor = None
        if self.is_weighted not in (None, is_weighted):
            raise ConfigurationError(
                "some losses of an update have a weight, and others have none",
                do="give each loss of an update its weight, or none of them.",
                rank=rank,
            )
        self.is_weighted = is_weighted

    def multiply(self, factor: float) -> None:
        """Multiply this rank's part of every gradient."""
        for parameter in self.module.parameters():
            gradient = parameter.grad
            if gradient is not None:
                own = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                own.mul_(factor)


class WeightedGradients:
    """Makes gradients Σ w · ∇loss / Σ w, over all ranks and the micro-batches of an update.

    Args:
        strategy: which averages gradients over its ranks.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        # The largest of the ranks' first weights. Weights count in units of it, so that the sums of
        # gradients, of which float16 holds none that are large, are about as large as a mean.
        self.unit = 0.0

    def backward(
        self, loss: Tensor, weight: Any, sums: Sequence[WeightedSum], *, is_last: bool
    ) -> None:
        """Add the gradients of a loss to those that are there.

        Args:
            loss: the mean over what ``weight`` counts; NaN where that is 0.
            weight: the number of tokens, say, behind this rank's loss; None for a plain loss.
            sums: of the modules that the loss may depend on.
            is_last: the update's last: gradients are then divided by the sum of all weights.

        Raises:
            ConfigurationError: only some losses of an update have a weight, or the strategy cannot
                divide; InputError: the weight is no number, or below 0.
        """
        if weight is not None:
            weight = _number(weight)
            self._check_strategy()
        for each in sums:
            each.open(weight is not None, self.strategy.comm().rank)
        if weight is None:
            self.strategy.backward(loss)
            return
        if not self.unit:
            self.unit = self._over_ranks(weight, "max")
        weight /= self.unit or 1.0
        with nullcontext() if weight else _without_gradients(loss):
            self.strategy.backward(loss * weight)
        for each in sums:
            each.weight += weight
            if is_last:
                self.finish(each)

    def finish(self, gradients: WeightedSum) -> None:
        """Make a mean of the sum of weighted gradients, unless that is done."""
        if not gradients.is_weighted or gradients.factor is not None:
            return
        total = self._over_ranks(gradients.weight, "sum")
        # The strategy has divided by the number of ranks. Where no rank has a weight, all are 0.
        gradients.factor = self.strategy.comm().world_size / total if total else 1.0
        gradients.multiply(gradients.factor)

    def _check_strategy(self) -> None:
        if not self.strategy.weighs_gradients:
            raise ConfigurationError(
                f"strategy={self.strategy.name!r} clips and steps inside its own engine: its "
                "gradients cannot be divided by the sum of all weights before that",
                do="say strategy='fsdp'; or backward of loss * weight / mean, with the mean weight "
                "of all ranks and micro-batches.",
                rank=self.strategy.comm().rank,
            )

    def _over_ranks(self, weight: float, op: Any) -> float:
        return all_reduce(weight, op, comm=self.strategy.comm(), name="weight of losses")


def _number(weight: Any) -> float:
    value = weight.item() if isinstance(weight, Tensor) and weight.numel() == 1 else weight
    if not is_number(value) or value < 0:
        raise InputError(
            f"the weight of a loss must be a number from 0 on, got {weight!r}",
            do="pass the number of tokens, rows or boxes that the loss is the mean of.",
        )
    return float(value)


@contextmanager
def _without_gradients(loss: Tensor) -> Iterator[None]:
    """Let a backward pass reach every parameter of a loss with zeros, also where the loss is NaN.

    Ranks wait for each other's gradients, so the pass cannot be left out.
    """
    nodes: Any = {loss.grad_fn}
    todo = [*nodes]
    while todo:
        inputs = {node for node, _ in todo.pop().next_functions if node is not None} - nodes
        nodes |= inputs
        todo += inputs
    handles = [node.register_prehook(_zeros) for node in nodes if hasattr(node, "variable")]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _zeros(gradients: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if each is None else torch.zeros_like(each) for each in gradients)
