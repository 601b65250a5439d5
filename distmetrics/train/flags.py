"""The trainer's flags: what they may be, and what flags of older guides are called today."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.registry import available
from distmetrics.train.callbacks import Callback, EarlyStopping, ModelCheckpoint, ModelSummary, ProgressBar
from distmetrics.train.loggers import CSVLogger, Logger

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


def refuse_unknown(given: Iterable[str], known: Iterable[str], accelerator: object = "auto") -> None:
    """Refuse flags that the trainer does not have, and a strategy's name for ``accelerator``.

    Raises:
        ConfigurationError: a flag of an older guide.
        TypeError: any other.
    """
    if isinstance(accelerator, str) and accelerator != "auto" and accelerator in available():
        raise ConfigurationError(
            f"accelerator={accelerator!r} is how older guides name a strategy\n"
            f"Do:     say strategy={accelerator!r}, and accelerator='gpu' or 'cpu'."
        )
    for flag in given:
        if flag in _OLDER:
            raise ConfigurationError(f"Trainer({flag}=...) is a flag of older guides\nDo:     say {_OLDER[flag]}")
        near = difflib.get_close_matches(flag, [*known, *_OLDER], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"Trainer got an unexpected keyword argument {flag!r}{hint}")


def check(trainer: Trainer) -> None:
    """Refuse flags with values that make no sense.

    Raises:
        ConfigurationError: such a value.
    """
    for name in ("check_val_every_n_epoch", "accumulate_grad_batches", "log_every_n_steps"):
        value = getattr(trainer, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"{name} must be positive, got {value!r}")
    interval = trainer.val_check_interval
    fits = interval >= 1 if isinstance(interval, int) else 0 < interval <= 1
    if isinstance(interval, bool) or not fits:
        raise ConfigurationError(
            f"val_check_interval must be a number of steps, or a fraction between 0.0 and 1.0, got {interval!r}"
        )
    if trainer.num_sanity_val_steps < -1:
        raise ConfigurationError(f"num_sanity_val_steps must be -1, 0 or positive, got {trainer.num_sanity_val_steps}")
    if trainer.deterministic not in (True, False, "warn"):
        raise ConfigurationError(f"deterministic must be True, False or 'warn', got {trainer.deterministic!r}")


def fast(trainer: Trainer, batches: int | bool) -> None:
    """Turn a trainer into one that runs a few batches of everything and leaves nothing behind.

    Raises:
        ConfigurationError: a negative number.
    """
    if batches < 0:
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
    progress_bar: bool | None,
    summary: bool | None,
    checkpointing: bool | None,
) -> list[Callback]:
    """Return the callbacks and those that flags ask for; those that save come last and see what the others did.

    Raises:
        ConfigurationError: ``enable_checkpointing=False`` and a ``ModelCheckpoint``.
    """
    found = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
    if ProgressBar.wanted(progress_bar) and not _has(found, ProgressBar):
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
    found = [logger] if isinstance(logger, Logger) else list(logger)
    for each in found:
        if not isinstance(each, Logger):
            raise ConfigurationError(
                f"logger={each!r} is no logger\nDo:     pass CSVLogger, TensorBoardLogger, or a subclass of Logger."
            )
    return found
