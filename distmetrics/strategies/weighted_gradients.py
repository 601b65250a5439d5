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

Versions = dict[Tensor, tuple[Tensor, int]]


class WeightedSum:
    """Gradients while they are a sum of weighted ones, and once they are a mean.

    Args:
        parameters: returns those whose gradients they are.
    """

    def __init__(self, parameters: Callable[[], list[Tensor]]) -> None:
        self.parameters = parameters
        self.clear()

    def clear(self) -> None:
        """Begin anew: the gradients were cleared, or an optimizer has stepped with them."""
        self.total = 0.0  # of all ranks, of what is in the mean
        self.added = 0.0  # to it since, on this rank
        self.is_weighted: bool | None = None  # None before the first loss
        self.factor: float | None = None  # that has made a mean of the sum
        self.is_foreign = False  # a loss that counts for other models has added to them
        # The gradients that were there, and their versions, at the first loss since.
        self._before: Versions = {}

    @property
    def is_sum(self) -> bool:
        """True while weighted gradients are not divided yet."""
        return bool(self.is_weighted) and self.factor is None

    def open(self, is_weighted: bool, rank: int) -> None:
        """Let a loss add to the gradients, which are a sum again; or begin anew without any."""
        if self.factor is not None:
            if self.has_none():
                self.clear()
            else:
                self._multiply(1 / self.factor)
                self.factor = None
                self._before = self.versions()
        if self.is_weighted not in (None, is_weighted) and self.has_none():
            self.clear()  # no loss has added to them
        if self.is_weighted not in (None, is_weighted):
            raise ConfigurationError(
                "some losses of an update have a weight, and others have none",
                do="give each loss of an update its weight, or none of them.",
                rank=rank,
            )
        if is_weighted and self.is_weighted is None:
            self._before = self.versions()
        self.is_weighted = is_weighted

    def has_none(self) -> bool:
        """True if there are no gradients."""
        return all(parameter.grad is None for parameter in self.parameters())

    def is_changed(self) -> bool:
        """True if a loss since has had a gradient for any of the parameters, on this rank."""
        return self.differs(self._before)

    def differs(self, before: Versions) -> bool:
        """True if gradients have been added to since."""
        for parameter, (gradient, version) in self.versions().items():
            gradient_before, version_before = before.get(parameter, (None, 0))
            if gradient is not gradient_before or version != version_before:
                return True
        return False

    def resume(self, added: float, is_weighted: bool | None) -> None:
        """Go on with gradients of a checkpoint."""
        self.clear()
        self.added, self.is_weighted = added, is_weighted

    def close(self, weight: float, is_changed: bool, world_size: int) -> None:
        """Make a mean of the sum, with what all ranks have added to its weight.

        Losses that depend on none of the parameters, on no rank, do not count.
        """
        self.added, self._before = 0.0, {}
        if is_changed:
            self.total += weight
        elif not self.total:
            self.clear()
            return
        # The strategy has divided by the number of ranks. Where no rank has a weight, all are 0.
        self.factor = world_size / self.total if self.total else 1.0
        self._multiply(self.factor)

    def _multiply(self, factor: float) -> None:
        for parameter in self.parameters():
            if parameter.grad is not None:
                _own(parameter.grad).mul_(factor)

    def versions(self) -> Versions:
        """Return the gradients that there are, and how often each has been changed."""
        versions: Versions = {}
        for parameter in self.parameters():
            if parameter.grad is not None:
                versions[parameter] = parameter.grad, _own(parameter.grad)._version
        return versions


def _own(gradient: Tensor) -> Tensor:
    """Return this rank's part."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


class WeightedSums(list[WeightedSum]):
    """Of a module's gradients: of those that each optimizer steps with, and of the others.

    Optimizers may step after different numbers of losses.
    """

    def __init__(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        def others() -> list[Tensor]:
            stepped = {each for optimizer in optimizers for each in parameters_of(optimizer)}
            return [parameter for parameter in module.parameters() if parameter not in stepped]

        super().__init__(WeightedSum(partial(parameters_of, each)) for each in optimizers)
        self.append(WeightedSum(others))
        self._optimizers = optimizers

    def clear(self) -> None:
        """Begin all anew."""
        for each in self:
            each.clear()

    def of(self, optimizer: Optimizer) -> WeightedSum:
        """Return the sum of the gradients that an optimizer steps with."""
        return self[[id(each) for each in self._optimizers].index(id(optimizer))]

    def note_cleared(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has stepped with its gradients, or cleared them."""
        self.of(optimizer).clear()
        self[-1].clear()


def check_apart(sums: Iterable[WeightedSum], rank: int) -> None:
    """Refuse parameters that several models or optimizers have: of which is the sum?

    Raises:
        ConfigurationError: there are such parameters.
    """
    parameters = [parameter for each in sums for parameter in each.parameters()]
    if len({*parameters}) < len(parameters):
        raise ConfigurationError(
            "the loss has a weight, and several models or optimizers have the same parameters: "
            "each would divide their gradients",
            do="set up one model with all parameters, and optimizers of different ones.",
            rank=rank,
        )


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

        Raises:
            ConfigurationError: only some losses of an update have a weight, or the strategy cannot
                divide; InputError: the weight is no number, or below 0.
        """
        if weight is not None:
            weight = weight_number(weight)
            self._check_strategy()
        for each in sums:
            each.open(weight is not None, self.strategy.comm().rank)
        if weight is None:
            self.strategy.backward(loss)
            return
        if not self.unit:
            self.unit = float(self._over_ranks(weight, "max"))
        weight /= self.unit or 1.0
        with torch.enable_grad():
            weighted = loss * weight
        before = [each.versions() for each in others]
        with nullcontext() if weight else _without_gradients(weighted):
            self.strategy.backward(weighted)
        for each, versions in zip(others, before, strict=True):
            each.is_foreign |= each.differs(versions)
        for each in sums:
            each.added += weight
        if is_last:
            self.finish(sums)

    def finish(self, sums: Sequence[WeightedSum]) -> None:
        """Make means of the sums of weighted gradients, unless that is done."""
        open_sums = [each for each in sums if each.is_sum]
        if not open_sums:
            return
        own = [(each.added, float(each.is_changed())) for each in open_sums]
        totals = self._over_ranks(torch.tensor(own, dtype=torch.float64, device="cpu"), "sum")
        for each, (weight, changed) in zip(open_sums, totals.tolist(), strict=True):
            each.close(weight, changed > 0, self.strategy.comm().world_size)

    def _check_strategy(self) -> None:
        if not self.strategy.weighs_gradients:
            raise ConfigurationError(
                f"strategy={self.strategy.name!r} clips and steps inside its own engine: its "
                "gradients cannot be divided by the sum of all weights before that",
                do="say strategy='fsdp'; or backward of loss * weight / mean, with the mean weight "
                "of all ranks and micro-batches.",
                rank=self.strategy.comm().rank,
            )

    def _over_ranks(self, weight: Any, op: Any) -> Any:
        return all_reduce(weight, op, comm=self.strategy.comm(), name="weight of losses")


def weight_number(weight: Any) -> float:
    """Return a weight as a number.

    Raises:
        InputError: it is none, or below 0.
    """
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
    handles = [node.register_prehook(_zeros) for node in nodes]
    try:
        with torch.autograd.set_detect_anomaly(False):  # the mean over nothing is NaN
            yield
    finally:
        for handle in handles:
            handle.remove()


def _zeros(gradients: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if each is None else torch.zeros_like(each) for each in gradients)
