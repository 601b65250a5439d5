"""The callbacks and the loggers that a trainer's flags ask for."""

from collections.abc import Sequence
from typing import Any

from distmetrics.arguments import describe
from distmetrics.errors import ConfigurationError
from distmetrics.log.writers import CSVLogger, Logger
from distmetrics.run.callbacks import (
    Callback,
    EarlyStopping,
    ModelCheckpoint,
    ModelSummary,
    ProgressBar,
)
from distmetrics.run.callbacks.display import wanted
from distmetrics.run.config import TrainerConfig


def chosen_callbacks(
    callbacks: Callback | Sequence[Callback] | None,
    config: TrainerConfig,
) -> list[Callback]:
    """Return the callbacks and those that flags ask for.

    Those that save come last, and see what the others did.

    Raises:
        ConfigurationError: ``enable_checkpointing=False`` and a ``ModelCheckpoint``.
    """
    chosen: list[Callback] = _as_list(callbacks, Callback, "callbacks", "EarlyStopping('val_loss')")
    wanted_kinds = [
        (ProgressBar, wanted(config.enable_progress_bar, "the progress bar")),
        (ModelSummary, wanted(config.enable_model_summary, "the model's table")),
        (ModelCheckpoint, bool(config.enable_checkpointing)),
    ]
    for kind, is_wanted in wanted_kinds:
        if is_wanted and not any(isinstance(callback, kind) for callback in chosen):
            chosen.append(kind())
    keepers = [callback for callback in chosen if isinstance(callback, ModelCheckpoint)]
    if config.enable_checkpointing is False and keepers:
        raise ConfigurationError(
            "enable_checkpointing=False, and callbacks has a ModelCheckpoint",
            do="drop one of them.",
        )
    others = [callback for callback in chosen if not isinstance(callback, ModelCheckpoint)]
    if config.fast_dev_run:
        return [callback for callback in others if not isinstance(callback, EarlyStopping)]
    return [*others, *keepers]


def chosen_loggers(
    logger: Logger | Sequence[Logger] | bool | None,
    config: TrainerConfig,
) -> list[Logger]:
    """Return the loggers: True is a ``CSVLogger`` in the trainer's folder.

    Raises:
        ConfigurationError: something that is no logger.
    """
    if logger is True:
        logger = CSVLogger(config.default_root_dir)
    example = "True, False or CSVLogger('logs')"
    loggers = _as_list(None if logger is False else logger, Logger, "logger", example)
    return [] if config.fast_dev_run else loggers


def _as_list(value: Any, kind: type, flag: str, example: str) -> list[Any]:
    if value is None:
        return []
    items = list(value) if isinstance(value, list | tuple) else [value]
    for item in items:
        if not isinstance(item, kind):
            raise ConfigurationError(
                f"{flag}= takes a {kind.__name__} or a list of such, got {describe(item)}",
                do=f"pass objects of {kind.__name__} or its subclasses: {example}, say.",
            )
    return items
