"""Stop when a value no longer gets better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distmetrics.arguments import NUMBER, TEXT, Takes, check, whole
from distmetrics.train.callbacks.base import Callback
from distmetrics.train.callbacks.monitor import (
    Mode,
    acts_after_validation,
    check_mode,
    improved,
    monitored,
)

if TYPE_CHECKING:
    from distmetrics.train.module import Module
    from distmetrics.train.trainer import Trainer

_TAKES = {
    "monitor": TEXT._replace(wanted="the name of a logged value"),
    "patience": Takes(lambda value: whole(value, 0), "a number of epochs, 0 or more"),
    "min_delta": NUMBER,
}


class EarlyStopping(Callback):
    """Stop training once ``monitor`` no longer gets better.

    Acts on the value of all ranks, so all ranks stop in the same epoch. NaN counts as not better.
    With ``val_check_interval`` each validation counts, and training ends after the one that was
    once too often not better.

    Args:
        monitor: a logged value.
        mode: whether "min" or "max" is better.
        patience: how many epochs, or validations, in a row without improvement end training.
        min_delta: what counts as an improvement must exceed this.

    Attributes:
        best_score: the best value so far.
        wait_count: epochs since then.
        stopped_epoch: the epoch that was the last, or None.
    """

    def __init__(
        self, monitor: str, *, mode: Mode = "min", patience: int = 3, min_delta: float = 0.0
    ) -> None:
        check("EarlyStopping", locals(), _TAKES)
        self.monitor = monitor
        self.mode = check_mode(mode)
        self.patience = patience
        self.min_delta = abs(min_delta)
        self.best_score: float | None = None
        self.wait_count = 0
        self.stopped_epoch: int | None = None

    @property
    def state_key(self) -> str:
        """What a checkpoint keeps the state under."""
        return f"EarlyStopping(monitor={self.monitor!r}, mode={self.mode!r})"

    def on_train_start(self, trainer: Trainer, module: Module) -> None:
        """Stop at once if the checkpoint that the fit goes on from was taken when training had been
        stopped.
        """
        if (
            trainer.is_resumed
            and self.stopped_epoch is not None
            and self.wait_count >= self.patience
        ):
            trainer.should_stop = True

    def on_validation_end(self, trainer: Trainer, module: Module) -> None:
        """Compare the value with the best, where an epoch has several validations."""
        if acts_after_validation(trainer, self.monitor):
            self._judge(trainer)

    def on_train_epoch_end(self, trainer: Trainer, module: Module) -> None:
        """Compare the epoch's value with the best."""
        if not acts_after_validation(trainer, self.monitor):
            self._judge(trainer)

    def _judge(self, trainer: Trainer) -> None:
        value = monitored(trainer, self.monitor, "EarlyStopping")
        if value is None:
            return
        if improved(value, self.best_score, self.mode, self.min_delta):
            self.best_score, self.wait_count = value, 0
            return
        self.wait_count += 1
        if self.wait_count >= self.patience:
            self.stopped_epoch = trainer.current_epoch
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the count of epochs since."""
        return {
            "best_score": self.best_score,
            "wait_count": self.wait_count,
            "stopped_epoch": self.stopped_epoch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken."""
        self.best_score = state["best_score"]
        self.wait_count = state["wait_count"]
        self.stopped_epoch = state["stopped_epoch"]
