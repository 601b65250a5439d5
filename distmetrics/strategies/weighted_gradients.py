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
from torch.optim import Optimizer

from distmetrics.arguments import is_number
from distmetrics.collectives.ops import all_reduce
from distmetrics.errors import ConfigurationError, InputError
from distmetrics.strategies.base import Strategy


class WeightedGradients:
    """Makes a model's gradients Σ w · ∇loss / Σ w, over all ranks and the losses of an update.

    Args:
        strategy: averages gradients over the ranks.
        module: the model.
        optimizers: of the model; each must have cleared its gradients before an update.

    Attributes:
        is_sum: True while weighted gradients are not divided yet.
    """

    def __init__(
        self, strategy: Strategy, module: nn.Module, optimizers: Sequence[Optimizer]
    ) -> None:
        self._strategy = strategy
        self._module = module
        self._optimizers = optimizers
        # The largest of the ranks' first weights. Weights count in units of it, so that the sums of
        # gradients, of which float16 holds none that are large, are about as large as a mean.
        self._unit = 0.0
        self._uncleared: set[Optimizer] = set()
        self.clear()

    def clear(self, optimizer: Optimizer | None = None) -> None:
        """Note that an optimizer has stepped with its gradients or cleared them; None is all."""
        if optimizer is not None and self._uncleared - {optimizer}:
            self._uncleared.discard(optimizer)
            return
        self._uncleared = set()
        self.is_sum = False
        self._is_weighted: bool | None = None  # None before the update's first loss
        self._total = 0.0  # weight of all ranks in the mean
        self._added = 0.0  # weight since the mean was made, on this rank
        self._factor = 1.0  # has made the mean of the sum

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, beside the gradients themselves."""
        return {"unit": self._unit, "added": self._added, "is_weighted": self._is_weighted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the gradients of a checkpoint."""
        self.clear()
        self._unit, self._added = state["unit"], state["added"]
        self._is_weighted = state["is_weighted"]
        self.is_sum = bool(self._is_weighted)

    def backward(self, loss: Tensor, weight: float | Tensor, *, is_last: bool) -> None:
        """Add the gradients of a loss to those that are there.

        Args:
            loss: the mean over what ``weight`` counts; NaN where that is 0.
            weight: the number of tokens, say, behind this rank's loss.
            is_last: the update's last: gradients are then divided by the sum of all weights.
        """
        number = weight_number(weight)
        if not self._strategy.weighs_gradients:
            raise ConfigurationError(
                f"strategy={self._strategy.name!r} clips and steps inside its own engine: its "
                "gradients cannot be divided by the sum of all weights before that",
                do="say strategy='fsdp'; or backward of loss * weight / mean, with the mean "
                "weight of all ranks and micro-batches.",
                rank=self._strategy.comm().rank,
            )
        self.note_loss(is_weighted=True)
        if not self._unit:
            self._unit = self._over_ranks(number, "max")
        number /= self._unit or 1.0
        with torch.enable_grad():
            weighted = loss * number
        with nullcontext() if number else _without_gradients(weighted):
            self._strategy.backward(weighted)
        self._added += number
        if is_last:
            self.finish()

    def note_loss(self, *, is_weighted: bool) -> None:
        """Let a loss add to the gradients: a mean is a sum again.

        Raises:
            ConfigurationError: some losses of an update have a weight and others have none, or
                one optimizer has cleared its gradients and another has not.
        """
        is_mean = bool(self._is_weighted) and not self.is_sum
        is_other = self._is_weighted not in (None, is_weighted)
        if (is_mean or is_other) and not self._gradients():
            self.clear()  # they were taken away
        if self._is_weighted not in (None, is_weighted):
            raise ConfigurationError(
                "some losses of an update have a weight, and others have none",
                do="give each loss of an update its weight, or none of them.",
                rank=self._strategy.comm().rank,
            )
        if is_weighted and 0 < len(self._uncleared) < len(self._optimizers):
            raise ConfigurationError(
                "the loss has a weight, and some optimizers of the model have stepped or cleared "
                "their gradients, others not: the sum of weights would be another for each",
                do="step or zero_grad() all of them before; where they step at different times, "
                "backward of loss * weight / mean, with the mean weight of all ranks.",
                rank=self._strategy.comm().rank,
            )
        if is_weighted:
            self._uncleared = set(self._optimizers)
        if is_weighted and is_mean:
            self._multiply(1 / self._factor)
        self._is_weighted = self.is_sum = is_weighted

    def finish(self) -> None:
        """Make the mean of a sum of weighted gradients, unless that is done."""
        if not self.is_sum:
            return
        self._total += self._over_ranks(self._added, "sum")
        # The strategy has divided by the number of ranks. Where no rank has a weight, all are 0.
        world_size = self._strategy.comm().world_size
        self._factor = world_size / self._total if self._total else 1.0
        self._multiply(self._factor)
        self._added, self.is_sum = 0.0, False

    def correct_mean(self, factor: float) -> None:
        """Multiply the mean of losses without a weight, of which there were fewer than thought."""
        if not self._is_weighted:
            self._multiply(factor)

    def _over_ranks(self, number: float, op: Any) -> float:
        reduced = torch.tensor(number, dtype=torch.float64, device="cpu")
        return float(all_reduce(reduced, op, comm=self._strategy.comm(), name="weight of losses"))

    def _gradients(self) -> list[Tensor]:
        return [each.grad for each in self._module.parameters() if each.grad is not None]

    def _multiply(self, factor: float) -> None:
        for gradient in self._gradients():
            own = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            own.mul_(factor)


def weight_number(weight: Any) -> float:
    """Return a weight as a number; raises InputError for what is none, or below 0."""
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

    Ranks wait for each other's gradients, so the pass cannot be left out. Every operation gets
    zeros: one that computes gradients of its own, a checkpoint say, has to begin with them.
    """
    nodes: Any = {loss.grad_fn}
    todo = [*nodes]
    while todo:
        inputs = {node for node, _ in todo.pop().next_functions if node is not None} - nodes
        nodes |= inputs
        todo += inputs

    def zeros(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple(None if each is None else torch.zeros_like(each) for each in gradients)

    handles = [node.register_prehook(zeros) for node in nodes]
    try:
        with torch.autograd.set_detect_anomaly(False):  # the mean over nothing is NaN
            yield
    finally:
        for handle in handles:
            handle.remove()
