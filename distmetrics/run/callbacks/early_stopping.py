"""Stop when a value no longer gets better."""

import math
from typing import Any, Literal

from distmetrics.arguments import NUMBER, TEXT, Takes, check, one_of, whole
from distmetrics.run.callbacks.base import Callback
from distmetrics.run.context import RunContext
from distmetrics.run.module import Module

Mode = Literal["min", "max"]
MODE = one_of("min", "max")
_TAKES = {
    "monitor": TEXT._replace(wanted="the name of a logged value"),
    "mode": MODE,
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
        mode: "min" or "max": which is better.
        patience: how many epochs, or validations, in a row without improvement end training.
        min_delta: what counts as an improvement must exceed this.

    Attributes:
        best_score: the best value so far.
        wait_count: epochs since then.
        stopped_epoch: the epoch that was the last, or None.
    """

    def __init__(
        self,
        monitor: str,
        *,
        mode: Mode = "min",
        patience: int = 3,
        min_delta: float = 0.0,
    ) -> None:
        self.monitor = monitor
        self.patience = patience
        self.min_delta = min_delta
        self.mode = mode
        check("EarlyStopping", vars(self), _TAKES)
        self.best_score: float | None = None
        self.wait_count = 0
        self.stopped_epoch: int | None = None

    @property
    def state_key(self) -> str:
        """What a checkpoint keeps the state under."""
        return f"EarlyStopping(monitor={self.monitor!r}, mode={self.mode!r})"

    def on_train_start(self, trainer: RunContext, module: Module) -> None:
        """Stop at once in a fit that goes on from where training had been stopped."""
        had_stopped = self.stopped_epoch is not None and self.wait_count >= self.patience
        if trainer.global_step > 0 and had_stopped:
            trainer.should_stop = True

    def on_validation_end(self, trainer: RunContext, module: Module) -> None:
        """Compare the value with the best, where an epoch has several validations."""
        if trainer.values.acts_after_validation(self.monitor):
            self._compare(trainer)

    def on_train_epoch_end(self, trainer: RunContext, module: Module) -> None:
        """Compare the epoch's value with the best."""
        if not trainer.values.acts_after_validation(self.monitor):
            self._compare(trainer)

    def _compare(self, trainer: RunContext) -> None:
        value = trainer.values.monitored(self.monitor, "EarlyStopping")
        if value is None:
            return
        if improved(value, self.best_score, self.mode, abs(self.min_delta)):
            self.best_score, self.wait_count = value, 0
            return
        self.wait_count += 1
        if self.wait_count >= self.patience:
            self.stopped_epoch = trainer.current_epoch
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the count of epochs since."""
        return {name: getattr(self, name) for name in ("best_score", "wait_count", "stopped_epoch")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken."""
        vars(self).update(state)


def improved(value: float, best: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """True if ``value`` is better than ``best`` by more than ``min_delta``; NaN is never better.

    >>> improved(0.5, 0.6, "min"), improved(0.5, 0.6, "max"), improved(0.5, None, "max")
    (True, False, True)
    """
    if math.isnan(value):
        return False
    if best is None or math.isnan(best):
        return True
    return value < best - min_delta if mode == "min" else value > best + min_delta
