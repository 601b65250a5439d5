"""The trainer's flags: what they may be, and the callbacks and loggers that they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distmetrics.arguments import FLAG, PATH, POSITIVE, SEED, Takes, describe, whole
from distmetrics.arguments import check as check_arguments
from distmetrics.errors import ConfigurationError
from distmetrics.train.callbacks import (
    Callback,
    EarlyStopping,
    ModelCheckpoint,
    ModelSummary,
    ProgressBar,
)
from distmetrics.train.loggers import CSVLogger, Logger

if TYPE_CHECKING:
    from distmetrics.train.trainer import Trainer


def check(values: Mapping[str, Any], who: str = "Trainer") -> None:
    """Refuse flags with values that make no sense.

    Args:
        values: all flags.
        who: the trainer's class.

    Raises:
        ConfigurationError: such a value.
    """
    check_arguments(who, values, _VALUES)


def _part(value: Any, least: int) -> bool:
    """Whether it is a whole number, or a fraction."""
    return whole(value, least) or (
        isinstance(value, float) and (0 < value <= 1 or least == value == 0)
    )


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


_LIMIT = Takes(
    lambda value: value is None or _part(value, 0),
    "a number of batches, or a fraction between 0.0 and 1.0",
)
_SHOWN = FLAG.or_none("None to leave it to the trainer")
_VALUES = {
    "max_epochs": Takes(
        lambda value: value is None or whole(value, -1),
        "a whole number, or -1 or None for no limit",
    ),
    "max_steps": Takes(lambda value: whole(value, -1), "a whole number, or -1 for no limit"),
    "limit_train_batches": _LIMIT,
    "limit_val_batches": _LIMIT,
    "limit_test_batches": _LIMIT,
    "limit_predict_batches": _LIMIT,
    "val_check_interval": Takes(
        lambda value: _part(value, 1), "a number of steps, or a fraction between 0.0 and 1.0"
    ),
    "check_val_every_n_epoch": POSITIVE,
    "num_sanity_val_steps": Takes(lambda value: whole(value, -1), "-1, 0 or positive"),
    "accumulate_grad_batches": POSITIVE,
    "gradient_clip_val": Takes(_positive, "positive").or_none(),
    "log_every_n_steps": POSITIVE,
    "default_root_dir": PATH.or_none("None for the current folder"),
    "enable_progress_bar": _SHOWN,
    "enable_model_summary": _SHOWN,
    "enable_checkpointing": FLAG.or_none(),
    "fast_dev_run": Takes(
        lambda value: isinstance(value, bool) or whole(value, 0), "True or a number of batches"
    ),
    "seed": SEED.or_none(),
    "deterministic": Takes(
        lambda value: isinstance(value, bool) or (isinstance(value, str) and value == "warn"),
        "True, False or 'warn'",
    ),
    "detect_anomaly": FLAG,
    "terminate_on_nan": FLAG,
    "require_same_names": FLAG,
    "use_distributed_sampler": FLAG,
}


def fast(trainer: Trainer, batches: int | bool) -> None:
    """Turn a trainer into one that runs a few batches of everything and leaves nothing behind."""
    count = int(batches)
    trainer.max_epochs, trainer.max_steps, trainer.num_sanity_val_steps = 1, count, 0
    trainer.limit_train_batches = trainer.limit_val_batches = count
    trainer.limit_test_batches = trainer.limit_predict_batches = count
    trainer.val_check_interval, trainer.check_val_every_n_epoch = 1.0, 1
    trainer.accumulate_grad_batches = 1
    trainer.loggers = []
    leaving = (ModelCheckpoint, EarlyStopping)
    trainer.callbacks = [
        callback for callback in trainer.callbacks if not isinstance(callback, leaving)
    ]


def ordered(
    callbacks: Callback | Sequence[Callback] | None,
    *,
    progress: bool | None,
    summary: bool | None,
    checkpointing: bool | None,
) -> list[Callback]:
    """Return the callbacks and those that flags ask for; those that save come last and see what the
    others did.

    Raises:
        ConfigurationError: ``enable_checkpointing=False`` and a ``ModelCheckpoint``.
    """
    found = [callbacks] if isinstance(callbacks, Callback) else _listed(callbacks)
    for each in found:
        _require(each, Callback, "callbacks")
    if ProgressBar.wanted(progress) and not _has(found, ProgressBar):
        found.append(ProgressBar())
    if ModelSummary.wanted(summary) and not _has(found, ModelSummary):
        found.append(ModelSummary())
    if checkpointing and not _has(found, ModelCheckpoint):
        found.append(ModelCheckpoint())
    if checkpointing is False and _has(found, ModelCheckpoint):
        raise ConfigurationError(
            "enable_checkpointing=False, and callbacks has a ModelCheckpoint",
            do="drop one of them.",
        )
    return sorted(found, key=lambda callback: isinstance(callback, ModelCheckpoint))


def _has(callbacks: Sequence[Callback], kind: type[Callback]) -> bool:
    return any(isinstance(callback, kind) for callback in callbacks)


def loggers_of(logger: Logger | Sequence[Logger] | bool | None, root: Path) -> list[Logger]:
    """Return the loggers that the flag asks for: True is a ``CSVLogger`` in the trainer's folder.

    Raises:
        ConfigurationError: something that is no logger.
    """
    if logger is None or isinstance(logger, bool):
        return [CSVLogger(root)] if logger else []
    found = [logger] if isinstance(logger, Logger) else _listed(logger)
    for each in found:
        _require(each, Logger, "logger")
    return found


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _require(value: Any, kind: type, flag: str) -> None:
    if not isinstance(value, kind):
        raise ConfigurationError(
            f"{flag}= takes a {kind.__name__} or a list of such, got {describe(value)}",
            do=f"pass objects of {kind.__name__} or its subclasses: {_EXAMPLES[kind]}, say.",
        )


_EXAMPLES: dict[Any, str] = {
    Callback: "EarlyStopping('val_loss')",
    Logger: "True, False or CSVLogger('logs')",
}
