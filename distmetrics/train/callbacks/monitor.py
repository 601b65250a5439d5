"""Looking up the value that a callback acts on: one that is the same on every rank."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Literal

from distmetrics.errors import ConfigurationError

if TYPE_CHECKING:
    from distmetrics.train.state import TrainerState
    from distmetrics.train.trainer import Trainer

Mode = Literal["min", "max"]


def check_mode(mode: str) -> Mode:
    """Return ``mode``.

    Raises:
        ConfigurationError: it is neither "min" nor "max".
    """
    if mode not in ("min", "max"):
        raise ConfigurationError(f"mode must be 'min' or 'max', got {mode!r}")
    return mode  # type: ignore[return-value]


def improved(value: float, best: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """Whether ``value`` is better than ``best`` by more than ``min_delta``; NaN is never better.

    >>> improved(0.5, 0.6, "min"), improved(0.5, 0.6, "max"), improved(0.5, None, "max")
    (True, False, True)
    """
    if math.isnan(value):
        return False
    if best is None or math.isnan(best):
        return True
    return value < best - min_delta if mode == "min" else value > best + min_delta


def acts_after_validation(trainer: Trainer, name: str | None) -> bool:
    """Whether a callback that watches ``name`` acts after each validation, of which an epoch has
    several.
    """
    return trainer.validates_within_epochs and name in trainer.validation_metrics


def monitored(trainer: Trainer, name: str, who: str, *, latest: bool = False) -> float | None:
    """Return the epoch's value of ``name``, the same on every rank; None where the epoch had no
    validation.

    Args:
        trainer: the trainer.
        name: a logged value.
        who: the callback, for errors.
        latest: also take a value of an earlier epoch or of a step; None where there is none yet.

    Raises:
        ConfigurationError: nothing is logged under that name, or only each rank's own value.
    """
    if name in trainer.local_metrics:
        raise ConfigurationError(
            f"{who} watches {name!r}, and every rank has its own value of it, or rank 0 alone "
            "has one",
            do="log it with on_epoch=True and without sync_dist=False.",
        )
    if name in trainer.fresh_metrics or (latest and name in trainer.callback_metrics):
        return float(trainer.callback_metrics[name])
    if latest or not trainer.validated:  # check_val_every_n_epoch: it may come in a later epoch
        return None
    raise not_logged(trainer, name, who)


def not_logged(trainer: TrainerState, name: str, who: str) -> ConfigurationError:
    """Return the error of a watched value that is not there, with the cause where that can be told."""
    if name in trainer.callback_metrics:
        return ConfigurationError(
            f"{who} watches {name!r}, and there is no value of it for this epoch: the one there "
            "is of a single step or "
            "of an earlier epoch",
            likely="self.log in training_step, which keeps each step's value alone unless "
            "on_epoch=True.",
            do="log it with on_epoch=True, in every epoch; rank_zero_only=True may stay.",
        )
    known = sorted(trainer.callback_metrics)
    each = [label for label in known if label.startswith(f"{name}/dataloader_idx_")]
    near = difflib.get_close_matches(name, known, n=1)
    likely, do = "", "log it in training_step with on_epoch=True, or in validation_step."
    if each:
        likely = (
            f"it is logged for {len(each)} validation loaders, and each has a value of its own."
        )
        do = f"watch one of them: {each[0]!r}, say."
    elif trainer.why_unvalidated:
        likely = f"it is a value of validation, and this fit has none: {trainer.why_unvalidated}."
        do = "validate in this fit, or watch a value that training_step logs with on_epoch=True."
    elif near:
        likely = f"{near[0]!r} is meant."
    return ConfigurationError(
        f"{who} watches {name!r}, and logged values are: {', '.join(known) or 'none'}\n"
        + (f"Likely: {likely}\n" if likely else "")
        + f"Do:     {do}"
    )
