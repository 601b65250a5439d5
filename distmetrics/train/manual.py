"""Optimization by the module itself: several optimizers, own order of backward and step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from distmetrics.collectives.reduce import all_reduce
from distmetrics.comm.base import Communicator
from distmetrics.errors import ConfigurationError

if TYPE_CHECKING:
    from distmetrics.strategies.base import TrainingStep
    from distmetrics.train.loops import Run
    from distmetrics.train.module import Module
    from distmetrics.train.trainer import Trainer


class ManualOptimizer:
    """An optimizer as ``self.optimizers()`` returns it: its step is a step of the trainer.

    Everything else is the optimizer's own.

    Attributes:
        optimizer: torch's.
    """

    def __init__(self, optimizer: Optimizer, trainer: Trainer, module: Module) -> None:
        self.optimizer = optimizer
        self._trainer = trainer
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not set yet: a copy is under way
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Step once, and clear the gradients of the parameters that it steps; counts in
        ``global_step``.

        Args:
            closure: called before, with gradients enabled.

        Raises:
            ConfigurationError: one of several ranks steps with gradients that ``manual_backward``
                has not made.
        """
        if closure is not None:
            with torch.enable_grad():
                closure()
        self._trainer.check_shared(self.optimizer)
        self._trainer.update(self.optimizer)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of this optimizer's parameters."""
        self.optimizer.zero_grad(set_to_none=set_to_none)


class ManualOptimization:
    """What a module needs that says ``self.automatic_optimization = False``.

    Then ``training_step`` does all: ``optimizer.zero_grad()``, ``self.manual_backward(loss)`` and
    ``optimizer.step()`` for each of ``self.optimizers()``, and the schedulers' steps.
    """

    automatic_optimization: bool = True
    if TYPE_CHECKING:

        @property
        def trainer(self) -> Trainer:
            """The trainer that runs the module."""

    def optimizers(self) -> Any:
        """Return the optimizer, or the list of several, to step by hand."""
        found = [
            ManualOptimizer(optimizer, self.trainer, self)  # type: ignore[arg-type]
            for optimizer in self.trainer.optimizers
        ]
        return found[0] if len(found) == 1 else found

    def lr_schedulers(self) -> Any:
        """Return the scheduler, the list of several, or None."""
        found = [schedule.scheduler for schedule in self.trainer.schedules]
        return found[0] if len(found) == 1 else found or None

    def manual_backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss; afterwards they are the mean over all ranks, on every
        rank.

        Raises:
            ConfigurationError: the module's optimization is automatic.
        """
        if self.automatic_optimization:
            raise ConfigurationError(
                f"{type(self).__name__} calls manual_backward, and its optimization is automatic",
                do="set self.automatic_optimization = False in __init__.",
            )
        self.trainer.manual_backward(loss)

    @contextmanager
    def toggled(self, optimizer: ManualOptimizer | Optimizer) -> Iterator[None]:
        """Let only the optimizer's parameters have gradients inside the block: a GAN's half, say."""
        groups: Any = optimizer.param_groups
        own = {id(parameter) for group in groups for parameter in group["params"]}
        held = [p for p in self.parameters() if p.requires_grad and id(p) not in own]  # type: ignore[attr-defined]
        for parameter in held:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in held:
                parameter.requires_grad_(True)


def is_wrapped(step: TrainingStep) -> TypeGuard[DistributedDataParallel]:
    """Whether gradients are averaged by torch's wrapper, which can't see a backward inside its own
    forward.
    """
    return isinstance(step, DistributedDataParallel)


def manual_step(step: TrainingStep, module: Module) -> TrainingStep:
    """Return what to call for a training step that does its own backward."""
    return module.training_step if is_wrapped(step) else step


def warn_unstepped(trainer: Trainer, run: Run, before: int) -> None:
    """Warn, once a fit, of a module that does its own optimization and has stepped nothing in a
    whole epoch.
    """
    idle = not run.module.automatic_optimization and trainer.global_step == before
    if not idle or run.is_idle:
        return
    run.is_idle = True
    if trainer.is_global_zero:
        warnings.warn(
            f"{type(run.module).__name__} does its own optimization (automatic_optimization = "
            "False), and has stepped "
            f"none of self.optimizers() in epoch {trainer.current_epoch}: global_step is still "
            f"{before}. "
            "In training_step, call self.manual_backward(loss) and then step() of what "
            "self.optimizers() returns.",
            stacklevel=2,
        )


def share_gradients(module: Module, comm: Communicator) -> None:
    """Make every gradient the mean over all ranks; a rank without one counts as zero, if another
    has one.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if comm.world_size == 1 or not trained:
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    there = torch.tensor([float(p.grad is not None) for p in trained])
    counts, sums = all_reduce((there, gradients), comm=comm, name="gradients")
    for parameter, count, total in zip(trained, counts.tolist(), sums, strict=True):
        if count:
            parameter.grad = total / comm.world_size
