"""The gradient of a mean whose weight differs by rank and micro-batch, as of tokens or boxes.

A loss over tokens is a mean over those of its micro-batch. Ranks and accumulated micro-batches have
different numbers of tokens, so the mean of their gradients is not that of one process. Here each
loss is multiplied by its weight, and the sum of gradients divided by the sum of all weights.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from distmetrics.arguments import is_number
from distmetrics.collectives.ops import all_reduce
from distmetrics.errors import ConfigurationError, InputError
from distmetrics.strategies.base import Strategy
from distmetrics.strategies.tensors import parameters_of


class WeightedSum:
    """Gradients of some parameters: a sum of weighted ones, and once an update their mean."""

    def __init__(self, parameters: Callable[[], list[Tensor]]) -> None:
        self.parameters = parameters
        self.clear()

    def clear(self) -> None:
        """Begin anew: the gradients were cleared, or an optimizer has stepped with them."""
        self.is_weighted: bool | None = None  # None before the first loss
        self.is_sum = False  # weighted gradients are not divided yet
        self.is_foreign = False  # a loss that counts for other models has added to them
        self.total = 0.0  # weight of all ranks in the mean
        self.added = 0.0  # weight since the mean was made, on this rank
        self.is_changed = False  # a loss since then has had a gradient for them, on this rank
        self.factor = 1.0  # that has made the mean of the sum

    def resume(self, added: float, is_weighted: bool | None) -> None:
        """Go on with gradients of a checkpoint."""
        self.clear()
        self.added, self.is_weighted = added, is_weighted
        self.is_sum = self.is_changed = bool(is_weighted)

    def open(self, is_weighted: bool, rank: int) -> None:
        """Let a loss add to the gradients: a mean is a sum again."""
        is_mean = bool(self.is_weighted) and not self.is_sum
        is_other = self.is_weighted not in (None, is_weighted)
        if (is_mean or is_other) and all(each.grad is None for each in self.parameters()):
            self.clear()  # they were taken away, or no loss has added to them
        elif is_other:
            raise ConfigurationError(
                "some losses of an update have a weight, and others have none",
                do="give each loss of an update its weight, or none of them.",
                rank=rank,
            )
        elif is_mean:
            self._multiply(1 / self.factor)
        self.is_weighted = self.is_sum = is_weighted

    def close(self, weight: float, is_changed: bool, world_size: int) -> None:
        """Make a mean of the sum, with the weight that all ranks have added."""
        if not (is_changed or self.total):
            self.clear()  # the losses depend on none of the parameters
            return
        self.total += weight if is_changed else 0.0
        # The strategy has divided by the number of ranks. Where no rank has a weight, all are 0.
        self.factor = world_size / self.total if self.total else 1.0
        self._multiply(self.factor)
        self.added, self.is_changed, self.is_sum = 0.0, False, False

    def _multiply(self, factor: float) -> None:
        for parameter in self.parameters():
            if parameter.grad is not None:
                _own(parameter.grad).mul_(factor)

    def versions(self) -> dict[Tensor, int]:
        """Return the gradients that there are, and how often each has been changed."""
        gradients = [each.grad for each in self.parameters() if each.grad is not None]
        return {gradient: _own(gradient)._version for gradient in gradients}


def _own(gradient: Tensor) -> Tensor:
    """Return this rank's part."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


class WeightedSums(list[WeightedSum]):
    """A sum for each optimizer, since these may step at different times; then the others'."""

    def __init__(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        own = list(module.parameters())

        def others() -> list[Tensor]:
            stepped = {each for optimizer in optimizers for each in parameters_of(optimizer)}
            return [parameter for parameter in own if parameter not in stepped]

        super().__init__(WeightedSum(partial(parameters_of, each)) for each in optimizers)
        self._of = dict(zip(optimizers, self, strict=True))
        self.append(WeightedSum(others))

    def clear(self) -> None:
        """Begin all anew."""
        for each in self:
            each.clear()

    def of(self, optimizer: Optimizer) -> WeightedSum:
        """Return the sum of the gradients that an optimizer steps with."""
        return self._of[optimizer]

    def note_cleared(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has stepped with its gradients, or cleared them."""
        self.of(optimizer).clear()
        self[-1].clear()


def check_apart(sums: Iterable[WeightedSum], rank: int) -> None:
    """Refuse parameters that several models or optimizers have: of which is the sum?"""
    parameters = [parameter for each in sums for parameter in each.parameters()]
    if len({*parameters}) < len(parameters):
        raise ConfigurationError(
            "the loss has a weight, and several models or optimizers have the same parameters: "
            "each would divide their gradients",
            do="set up one model with all parameters, and optimizers of different ones.",
            rank=rank,
        )


class WeightedGradients:
    """Makes gradients Σ w · ∇loss / Σ w, over all ranks and the micro-batches of an update."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        # The largest of the ranks' first weights. Weights count in units of it, so that the sums of
        # gradients, of which float16 holds none that are large, are about as large as a mean.
        self.unit = 0.0

    def backward(
        self,
        loss: Tensor,
        weight: Any,
        sums: Sequence[WeightedSum],
        others: Sequence[WeightedSum] = (),
        *,
        is_last: bool,
    ) -> None:
        """Add the gradients of a loss to those that are there.

        Args:
            loss: the mean over what ``weight`` counts; NaN where that is 0.
            weight: the number of tokens, say, behind this rank's loss; None for a plain loss.
            sums: of the modules that the loss counts for.
            others: of modules that it does not count for; they are not stepped with what it adds.
            is_last: the update's last: gradients are then divided by the sum of all weights.
        """
        rank = self.strategy.comm().rank
        if weight is not None:
            weight = weight_number(weight)
            if not self.strategy.weighs_gradients:
                raise ConfigurationError(
                    f"strategy={self.strategy.name!r} clips and steps inside its own engine: its "
                    "gradients cannot be divided by the sum of all weights before that",
                    do="say strategy='fsdp'; or backward of loss * weight / mean, with the mean "
                    "weight of all ranks and micro-batches.",
                    rank=rank,
                )
        for each in sums:
            each.open(weight is not None, rank)
        if weight is None:
            self.strategy.backward(loss)
            return
        if not self.unit:
            self.unit = float(self._over_ranks(weight, "max"))
        weight /= self.unit or 1.0
        with torch.enable_grad():
            weighted = loss * weight
        before = {each: each.versions() for each in (*sums, *others)}
        with nullcontext() if weight else _without_gradients(weighted):
            self.strategy.backward(weighted)
        for each in sums:
            each.added += weight
            each.is_changed |= each.versions() != before[each]
        for each in others:
            each.is_foreign |= each.versions() != before[each]
        if is_last:
            self.finish(sums)

    def finish(self, sums: Sequence[WeightedSum]) -> None:
        """Make means of the sums of weighted gradients, unless that is done."""
        open_sums = [each for each in sums if each.is_sum]
        if not open_sums:
            return
        own = [(each.added, float(each.is_changed)) for each in open_sums]
        totals = self._over_ranks(torch.tensor(own, dtype=torch.float64, device="cpu"), "sum")
        for each, (weight, changed) in zip(open_sums, totals.tolist(), strict=True):
            each.close(weight, changed > 0, self.strategy.comm().world_size)

    def _over_ranks(self, weight: Any, op: Any) -> Any:
        return all_reduce(weight, op, comm=self.strategy.comm(), name="weight of losses")


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
