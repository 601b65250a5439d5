"""The trainer's flags: what they may be, and what flags of older guides are called today."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.registry import available
from distmetrics.train.callbacks import Callback, EarlyStopping, ModelCheckpoint, ModelSummary, ProgressBar
from distmetrics.train.loggers import CSVLogger, Logger
from distmetrics.train.signatures import describe

if TYPE_CHECKING:
    from distmetrics.train.trainer import Trainer

__all__ = ["check", "fast", "loggers_of", "ordered", "refuse_unknown"]

# What a flag of an older guide is called today.
_OLDER = {
    "distributed_backend": "strategy=...",
    "num_tpu_cores": "tpu_cores=..., or accelerator='tpu', devices=...",
    "num_processes": "devices=..., accelerator='cpu'",
    "auto_select_gpus": "devices='auto'",
    "nb_gpu_nodes": "num_nodes=...",
    "num_gpus": "devices=..., accelerator='gpu'",
    "ipus": "devices=..., accelerator=...",
    "training_type_plugin": "strategy=...",
    "weights_summary": "enable_model_summary=...",
    "replace_sampler_ddp": "use_distributed_sampler=...",
    "progress_bar_refresh_rate": "enable_progress_bar=...",
    "process_position": "enable_progress_bar=...",
    "checkpoint_callback": "enable_checkpointing=..., and callbacks=[ModelCheckpoint(...)]",
    "early_stop_callback": "callbacks=[EarlyStopping(...)]",
    "weights_save_path": "callbacks=[ModelCheckpoint(dirpath=...)]",
    "default_save_path": "default_root_dir=...",
    "resume_from_checkpoint": "fit(..., ckpt_path=...)",
    "row_log_interval": "log_every_n_steps=...",
    "flush_logs_every_n_steps": "log_every_n_steps=...",
    "log_save_interval": "log_every_n_steps=...",
    "log_gpu_memory": "a callback of your own",
    "train_percent_check": "limit_train_batches=...",
    "val_percent_check": "limit_val_batches=...",
    "test_percent_check": "limit_test_batches=...",
    "overfit_pct": "limit_train_batches=..., and the same loader for validation",
    "overfit_batches": "limit_train_batches=..., and the same loader for validation",
    "accumulate_grad_steps": "accumulate_grad_batches=...",
    "gradient_clip": "gradient_clip_val=...",
    "nb_sanity_val_steps": "num_sanity_val_steps=...",
    "max_nb_epochs": "max_epochs=...",
    "check_val_every_n_epochs": "check_val_every_n_epoch=...",
    "amp_level": "precision=...",
    "amp_backend": "precision=...",
    "use_amp": "precision='16-mixed'",
    "track_grad_norm": "on_before_optimizer_step of a module or callback",
    "prepare_data_per_node": "nothing: prepare_data is called once a machine",
    "truncated_bptt_steps": "self.automatic_optimization = False",
    "move_metrics_to_cpu": "nothing: values are kept on the CPU",
    "reload_dataloaders_every_epoch": "nothing yet: loaders are asked for once a fit",
    "stochastic_weight_avg": "a callback of your own",
    "profiler": "a callback of your own",
}


def refuse_unknown(
    given: Iterable[str], known: Iterable[str], accelerator: object = "auto", *, who: str = "Trainer"
) -> None:
    """Refuse flags that the trainer, or ``who`` it is, does not have, and a strategy's name for ``accelerator``.

    Raises:
        ConfigurationError: a flag of an older guide.
        TypeError: any other.
    """
    if isinstance(accelerator, str) and accelerator != "auto" and accelerator in available():
        raise ConfigurationError(
            f"accelerator={accelerator!r} is how older guides name a strategy\n"
            f"Do:     say strategy={accelerator!r}, and accelerator='gpu' or 'cpu'."
        )
    known = list(known)
    for flag in given:
        if flag in _OLDER and (who == "Trainer" or any(name in _OLDER[flag] for name in known)):
            raise ConfigurationError(f"{who}({flag}=...) is a flag of older guides\nDo:     say {_OLDER[flag]}")
        near = difflib.get_close_matches(flag, [*known, *(_OLDER if who == "Trainer" else ())], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"{who} got an unexpected keyword argument {flag!r}{hint}")


def check(trainer: Trainer) -> None:
    """Refuse flags with values that make no sense.

    Raises:
        ConfigurationError: such a value.
    """
    for name, (fits, wanted) in _VALUES.items():
        value = getattr(trainer, name)
        if not fits(value):
            raise ConfigurationError(f"{name} must be {wanted}, got {value!r}")


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _part(value: Any, least: int) -> bool:
    """Whether it is a whole number, or a fraction."""
    return _whole(value, least) or (isinstance(value, float) and (0 < value <= 1 or least == value == 0))


_POSITIVE = (lambda value: _whole(value, 1), "positive and whole")
_LIMIT = (
    lambda value: value is None or _part(value, 0),
    "a number of batches, or a fraction between 0.0 and 1.0",
)
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_epochs": (lambda value: value is None or _whole(value, -1), "a whole number, or -1 or None for no limit"),
    "max_steps": (lambda value: _whole(value, -1), "a whole number, or -1 for no limit"),
    "limit_train_batches": _LIMIT,
    "limit_val_batches": _LIMIT,
    "limit_test_batches": _LIMIT,
    "limit_predict_batches": _LIMIT,
    "val_check_interval": (lambda value: _part(value, 1), "a number of steps, or a fraction between 0.0 and 1.0"),
    "check_val_every_n_epoch": _POSITIVE,
    "num_sanity_val_steps": (lambda value: _whole(value, -1), "-1, 0 or positive"),
    "accumulate_grad_batches": _POSITIVE,
    "gradient_clip_val": (lambda value: value is None or (_number(value) and value > 0), "positive, or None"),
    "log_every_n_steps": _POSITIVE,
    "seed": (lambda value: value is None or (_whole(value, 0) and value < 2**32), "from 0 to 2**32 - 1, or None"),
    "deterministic": (lambda value: value in (True, False, "warn"), "True, False or 'warn'"),
}


def fast(trainer: Trainer, batches: int | bool) -> None:
    """Turn a trainer into one that runs a few batches of everything and leaves nothing behind.

    Raises:
        ConfigurationError: a negative number.
    """
    if not isinstance(batches, int) or batches < 0:
        raise ConfigurationError(f"fast_dev_run must be True or a number of batches, got {batches!r}")
    count = int(batches)
    trainer.max_epochs, trainer.max_steps, trainer.num_sanity_val_steps = 1, count, 0
    trainer.limit_train_batches = trainer.limit_val_batches = count
    trainer.limit_test_batches = trainer.limit_predict_batches = count
    trainer.val_check_interval, trainer.check_val_every_n_epoch = 1.0, 1
    trainer.accumulate_grad_batches = 1
    trainer.loggers = []
    leaving = (ModelCheckpoint, EarlyStopping)
    trainer.callbacks = [callback for callback in trainer.callbacks if not isinstance(callback, leaving)]


def ordered(
    callbacks: Callback | Sequence[Callback] | None,
    *,
    progress: bool | None,
    summary: bool | None,
    checkpointing: bool | None,
) -> list[Callback]:
    """Return the callbacks and those that flags ask for; those that save come last and see what the others did.

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
            "enable_checkpointing=False, and callbacks has a ModelCheckpoint\nDo:     drop one of them."
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
            f"{flag}= takes a {kind.__name__} or a list of such, got {describe(value)}\n"
            f"Do:     pass objects of {kind.__name__} or its subclasses: {_EXAMPLES[kind]}, say."
        )


_EXAMPLES: dict[Any, str] = {Callback: "EarlyStopping('val_loss')", Logger: "CSVLogger('logs')"}
