"""A module's trainer, the moments at which it may do something, and optimization of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.errors import ConfigurationError
from distmetrics.run.context import RunContext
from distmetrics.run.wrapped import RunnerOptimizer
from distmetrics.strategies.tensors import parameters_of


class Hooks(nn.Module):
    """What a :class:`~distmetrics.train.Module` may override; each is called on every rank.

    A hook about a batch is called where there is one: ranks may have different numbers of them.
    With several loaders those of an evaluation get ``dataloader_idx`` as a last argument.

    Three more exist only if a module defines them: ``training_epoch_end(outputs)``,
    ``validation_epoch_end(outputs)`` and ``test_epoch_end(outputs)`` get what the steps of the
    epoch returned on this rank, without gradients; with several loaders one list a loader. Where a
    module has none, outputs are not kept.
    """

    _trainer: RunContext | None = None

    @property
    def trainer(self) -> RunContext:
        """The trainer that runs this module.

        Raises:
            ConfigurationError: none does.
        """
        if self._trainer is None:
            raise ConfigurationError(
                f"{type(self).__name__} is not attached to a trainer",
                do="call it through Trainer.fit, validate or test; in a unit test of a step, "
                "replace self.log.",
            )
        return self._trainer

    def prepare_data(self) -> None:
        """Called once a machine, before ``setup``."""

    def setup(self, stage: str) -> None:
        """Called on every rank before ``stage``: "fit", "validate", "test" or "predict"."""

    def teardown(self, stage: str) -> None:
        """Called on every rank after ``stage``, also when it failed."""

    def on_fit_start(self) -> None:
        """Called before anything of a fit, with weights and optimizers in place."""

    def on_fit_end(self) -> None:
        """Called after everything of a fit."""

    def on_train_start(self) -> None:
        """Called before the first epoch, after the sanity check."""

    def on_train_end(self) -> None:
        """Called after the last epoch."""

    def on_train_epoch_start(self) -> None:
        """Called before the first step of an epoch."""

    def on_train_epoch_end(self) -> None:
        """Called after the last step of an epoch and its validation; values may be logged."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Called before a training step."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after a training step and its update, with the step's outputs, detached."""

    def on_before_backward(self, loss: Tensor) -> None:
        """Called with the loss before its gradients are computed."""

    def on_after_backward(self) -> None:
        """Called when a step's gradients are there."""

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Called when an update's gradients are there, before they are clipped."""

    def on_validation_start(self) -> None:
        """Called before a validation; likewise of a test and a prediction."""

    def on_validation_end(self) -> None:
        """Called after a validation, with its values known; likewise of the others."""

    def on_validation_epoch_start(self) -> None:
        """Called before the first step of a validation; likewise of the others."""

    def on_validation_epoch_end(self) -> None:
        """Called after the last step of a validation, on every rank; likewise of the others.

        Values may be logged, but not of a prediction.
        """

    def on_validation_batch_start(
        self,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Called before a step of a validation; likewise of the others."""

    def on_validation_batch_end(
        self,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Called after a step of a validation; likewise of the others."""

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end
    on_test_epoch_start = on_predict_epoch_start = on_validation_epoch_start
    on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end
    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called on every rank with what a checkpoint will hold; things may be added."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called on every rank with a checkpoint before it is put in place."""


class ManualOptimizer(RunnerOptimizer):
    """An optimizer as ``self.optimizers()`` returns it: its step is a step of the trainer.

    Everything else is the optimizer's own.

    Attributes:
        optimizer: torch's.
    """

    def __init__(self, wrapped: RunnerOptimizer, fit: Any) -> None:
        vars(self).update(vars(wrapped))
        self._wrapped, self._fit = wrapped, fit

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
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
        self._fit.manual_step(self._wrapped)


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

    def manual_backward(self, loss: Tensor, *, weight: float | Tensor | None = None) -> None:
        """Compute the gradients of a loss; afterwards they are the mean over all ranks, on each.

        Args:
            loss: of one element.
            weight: the number of tokens, rows or boxes that it is the mean of: the gradients are
                then Σ w · ∇loss / Σ w over all ranks, and all calls since the last step.

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
        fit.manual_backward(loss, weight)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        super().zero_grad(set_to_none)
        fit = None if self._trainer is None else self._trainer.fit_state
        if fit is not None and fit.module is self:
            fit.model._runner.gradients.clear()

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
