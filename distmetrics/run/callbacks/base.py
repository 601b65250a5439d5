"""What can be done between the steps of a run."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from distmetrics.run.context import RunContext
from distmetrics.run.module import Module


class Callback:
    """Override the moments that matter; each is called on every rank.

    The module's own hook of a moment comes first. What is about a batch of an evaluation gets
    ``dataloader_idx`` as a last argument where there are several loaders.

    Strategies that start processes work on copies of callbacks: what :meth:`state_dict` returns on
    rank 0 is brought home, other attributes are not.
    """

    @property
    def state_key(self) -> str:
        """What a checkpoint keeps this callback's state under."""
        return type(self).__qualname__

    def setup(self, trainer: RunContext, module: Module, stage: str) -> None:
        """Before ``stage``, which is "fit", "validate", "test" or "predict"."""

    def teardown(self, trainer: RunContext, module: Module, stage: str) -> None:
        """After it, also when it failed."""

    def on_fit_start(self, trainer: RunContext, module: Module) -> None:
        """Before a fit."""

    def on_fit_end(self, trainer: RunContext, module: Module) -> None:
        """After a fit."""

    def on_train_start(self, trainer: RunContext, module: Module) -> None:
        """Before the first epoch, after the sanity check."""

    def on_train_end(self, trainer: RunContext, module: Module) -> None:
        """After the last epoch."""

    def on_train_epoch_start(self, trainer: RunContext, module: Module) -> None:
        """Before the first step of an epoch."""

    def on_train_batch_start(
        self,
        trainer: RunContext,
        module: Module,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Before a training step; ``batch`` is None on a rank without one."""

    def on_train_batch_end(
        self,
        trainer: RunContext,
        module: Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """After a training step and its update; ``batch`` is None on a rank without one."""

    def on_before_backward(self, trainer: RunContext, module: Module, loss: Tensor) -> None:
        """With the loss, before its gradients are computed."""

    def on_after_backward(self, trainer: RunContext, module: Module) -> None:
        """When a step's gradients are there."""

    def on_before_optimizer_step(
        self,
        trainer: RunContext,
        module: Module,
        optimizer: Optimizer,
    ) -> None:
        """When an update's gradients are there, before they are clipped."""

    def on_train_epoch_end(self, trainer: RunContext, module: Module) -> None:
        """After an epoch and its validation: all values of the epoch are there."""

    def on_validation_start(self, trainer: RunContext, module: Module) -> None:
        """Before a validation; likewise of a test and a prediction."""

    def on_validation_epoch_start(self, trainer: RunContext, module: Module) -> None:
        """Before the first step of a validation; likewise of a test and a prediction."""

    def on_validation_batch_start(
        self,
        trainer: RunContext,
        module: Module,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Before a step of a validation; likewise of a test and a prediction."""

    def on_validation_batch_end(
        self,
        trainer: RunContext,
        module: Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """After a step of a validation; likewise of a test and a prediction.

        Ranks may have different numbers of steps.
        """

    def on_validation_epoch_end(self, trainer: RunContext, module: Module) -> None:
        """After the last step of a validation, with its values; likewise of the others."""

    def on_validation_end(self, trainer: RunContext, module: Module) -> None:
        """After a validation; likewise of a test and a prediction."""

    on_test_start = on_predict_start = on_validation_start
    on_test_epoch_start = on_predict_epoch_start = on_validation_epoch_start
    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end
    on_test_end = on_predict_end = on_validation_end

    def on_save_checkpoint(
        self,
        trainer: RunContext,
        module: Module,
        checkpoint: dict[str, Any],
    ) -> None:
        """With what a checkpoint will hold; things may be added."""

    def on_load_checkpoint(
        self,
        trainer: RunContext,
        module: Module,
        checkpoint: dict[str, Any],
    ) -> None:
        """With a checkpoint, before it is put in place."""

    def on_exception(self, trainer: RunContext, module: Module, exception: BaseException) -> None:
        """When a run fails on this rank, before ``teardown``."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this callback."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
