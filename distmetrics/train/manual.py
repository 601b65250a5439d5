"""Optimization by the module itself: several optimizers, own order of backward and step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.tensors import parameters_of
from distmetrics.train.fit_state import FitState
from distmetrics.train.hooks import Hooks


class ManualOptimizer:
    """An optimizer as ``self.optimizers()`` returns it: its step is a step of the trainer.

    Everything else is the optimizer's own.

    Attributes:
        optimizer: torch's.
    """

    def __init__(self, optimizer: Optimizer, fit: FitState) -> None:
        self.optimizer = optimizer
        self._fit = fit

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not set yet: a copy is under way
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Step once, and clear the gradients of what it steps; counts in ``global_step``.

        Args:
            closure: called before, with gradients enabled.

        Raises:
            ConfigurationError: one of several ranks steps with gradients that ``manual_backward``
                has not made.
        """
        if closure is not None:
            with torch.enable_grad():
                closure()
        self._fit.manual_update(self.optimizer)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of this optimizer's parameters."""
        self.optimizer.zero_grad(set_to_none=set_to_none)


class ManualOptimization(Hooks):
    """What a module needs that does its own optimization.

    With ``self.automatic_optimization = False`` its ``training_step`` does all:
    ``optimizer.zero_grad()``, ``self.manual_backward(loss)`` and ``optimizer.step()`` for each of
    ``self.optimizers()``, and the schedulers' steps.
    """

    automatic_optimization: bool = True

    def optimizers(self) -> Any:
        """Return the optimizer, or the list of several, to step by hand."""
        fit = self.trainer.fit_state
        optimizers = [] if fit is None else [ManualOptimizer(each, fit) for each in fit.optimizers]
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def lr_schedulers(self) -> Any:
        """Return the scheduler, the list of several, or None."""
        fit = self.trainer.fit_state
        schedulers = [] if fit is None else [schedule.scheduler for schedule in fit.schedules]
        return schedulers[0] if len(schedulers) == 1 else schedulers or None

    def manual_backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss; afterwards they are the mean over all ranks, on each.

        Raises:
            ConfigurationError: the module's optimization is automatic, or no fit is under way.
        """
        if self.automatic_optimization:
            raise ConfigurationError(
                f"{type(self).__name__} calls manual_backward, and its optimization is automatic",
                do="set self.automatic_optimization = False in __init__.",
            )
        fit = self.trainer.fit_state
        if fit is None:
            raise ConfigurationError("manual_backward is for training_step: no fit is under way")
        fit.manual_backward(loss)

    @contextmanager
    def toggled(self, optimizer: ManualOptimizer | Optimizer) -> Iterator[None]:
        """Let only the optimizer's parameters have gradients inside the block: a GAN's half."""
        inner: Any = optimizer
        own = set(parameters_of(inner))
        others = [p for p in self.parameters() if p.requires_grad and p not in own]
        for parameter in others:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in others:
                parameter.requires_grad_(True)
