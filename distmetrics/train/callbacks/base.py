"""What can be done between the steps of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distmetrics.train.module import Module
    from distmetrics.train.trainer import Trainer

__all__ = ["Callback"]


class Callback:
    """Override the moments that matter; each is called on every rank, with the trainer and the module.

    Strategies that start processes work on copies of callbacks: what :meth:`state_dict` returns on rank 0
    is brought home, other attributes are not.
    """

    def setup(self, trainer: Trainer, module: Module, call: str) -> None:
        """Before ``call``, which is "fit", "validate" or "test"."""

    def teardown(self, trainer: Trainer, module: Module, call: str) -> None:
        """After it, also when it failed."""

    def on_fit_start(self, trainer: Trainer, module: Module) -> None:
        """Before training."""

    def on_fit_end(self, trainer: Trainer, module: Module) -> None:
        """After training."""

    def on_train_epoch_start(self, trainer: Trainer, module: Module) -> None:
        """Before the first step of an epoch."""

    def on_train_batch_end(self, trainer: Trainer, module: Module, batch_idx: int) -> None:
        """After a training step."""

    def on_train_epoch_end(self, trainer: Trainer, module: Module) -> None:
        """After an epoch and its validation: all values of the epoch are there."""

    def on_validation_epoch_start(self, trainer: Trainer, module: Module) -> None:
        """Before the first validation step."""

    def on_validation_batch_end(self, trainer: Trainer, module: Module, batch_idx: int) -> None:
        """After a validation step; ranks may have different numbers of them."""

    def on_validation_epoch_end(self, trainer: Trainer, module: Module) -> None:
        """After validation: its values are there."""

    def on_test_epoch_start(self, trainer: Trainer, module: Module) -> None:
        """Before the first test step."""

    def on_test_batch_end(self, trainer: Trainer, module: Module, batch_idx: int) -> None:
        """After a test step; ranks may have different numbers of them."""

    def on_test_epoch_end(self, trainer: Trainer, module: Module) -> None:
        """After the test: its values are there."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this callback."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
