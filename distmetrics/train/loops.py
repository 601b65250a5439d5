"""One epoch of training, and one evaluation."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.errors import ConfigurationError, InputError
from distmetrics.strategies.base import TrainingStep
from distmetrics.strategies.sampling import set_epoch
from distmetrics.train.data import Limit, agreed_batches, limited, move
from distmetrics.train.logger import Logger, Stage
from distmetrics.train.optimizers import Schedule

if TYPE_CHECKING:
    from distmetrics.train.module import Module
    from distmetrics.train.trainer import Trainer

__all__ = ["Run", "evaluate", "train_epoch"]


@dataclass
class Run:
    """What a fit works with on this rank."""

    module: Module
    step: TrainingStep
    optimizer: Optimizer
    train_loader: Any
    val_loaders: Sequence[Any] = ()
    schedules: Sequence[Schedule] = field(default_factory=list)


def train_epoch(trainer: Trainer, run: Run, logger: Logger) -> None:
    """Take this epoch's steps: as many as the rank with most batches has, on every rank."""
    strategy, comm = trainer.strategy, trainer.strategy.comm()
    set_epoch(run.train_loader, trainer.current_epoch)
    limit = limited(run.train_loader, trainer.limit_train_batches, "limit_train_batches")
    trainer.num_batches = length(run.train_loader, limit)
    for batch_idx, (batch, ranks) in enumerate(agreed_batches(run.train_loader, limit, comm)):
        trainer.absent = comm.world_size - ranks
        if batch is not None:
            batch = strategy.convert(move(batch, strategy.device))
            logger.begin_step(batch)
        with strategy.forward():
            loss = loss_of(run.step(batch, batch_idx))
        logger.end_step()
        logger.sync_step(everyone=trainer.absent == 0)
        trainer.note_step(logger)
        if loss is not None:
            # A mean over all ranks counts those without a batch: this makes it the mean over those with one.
            loss = loss if trainer.absent == 0 else loss * (comm.world_size / ranks)
            strategy.backward(loss)
            strategy.update(run.module, run.optimizer, clip=trainer.gradient_clip_val)
            trainer.global_step += 1
            for schedule in run.schedules:
                schedule.step("step", trainer.global_step, trainer.callback_metrics)
        trainer.call("on_train_batch_end", batch_idx, module=False)
        if 0 <= trainer.max_steps <= trainer.global_step:
            break
    trainer.absent = 0


def loss_of(output: Any) -> Tensor | None:
    """Return the loss in what ``training_step`` returned, or None to skip the step.

    Raises:
        InputError: there is none, or it is no scalar tensor.
    """
    if output is None:
        return None
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise InputError(
            f"training_step must return a loss of one element, or a dict with such under 'loss'; got {got}"
        )
    return loss


def evaluate(
    trainer: Trainer, module: Module, stage: Stage, loaders: Sequence[Any], limit: Limit, *, record: bool = True
) -> list[dict[str, float]]:
    """Evaluate the module on each loader; return one dict of the logged values for each.

    Args:
        trainer: whose hooks and callbacks are called.
        module: what to evaluate.
        stage: "validate" or "test".
        loaders: this rank's; other ranks may have other numbers of batches.
        limit: a number of batches of each loader on this rank, a fraction, or None.
        record: False forgets what is logged, and calls no callback.
    """
    name = "validation" if stage == "validate" else "test"
    flag = "limit_val_batches" if stage == "validate" else "limit_test_batches"
    limits = [limited(loader, limit, flag) for loader in loaders]
    counts = [length(loader, count) for loader, count in zip(loaders, limits, strict=True)]
    trainer.num_batches = None if None in counts else sum(count for count in counts if count is not None)
    trainer.strategy.align(module)
    logger = Logger(stage, trainer.strategy.comm(), module, loaders=len(loaders))
    with evaluating(module), trainer.logging(logger):
        trainer.call(f"on_{name}_epoch_start", callbacks=record)
        for index, (loader, count) in enumerate(zip(loaders, limits, strict=True)):
            step = functools.partial(_evaluation_step, trainer, module, logger, index if len(loaders) > 1 else None)
            for batch_idx, batch in enumerate(itertools.islice(loader, count)):
                step(batch, batch_idx)
                if record:
                    trainer.call(f"on_{name}_batch_end", batch_idx, module=False)
        trainer.call(f"on_{name}_epoch_end", callbacks=False)
        if not record:
            logger.discard()
            return []
        logged = logger.close()
    trainer.note_epoch(logger, logged)
    trainer.call(f"on_{name}_epoch_end", module=False)
    return [
        {key.label: float(value) for key, value in logged.values.items() if key.loader in (-1, index)}
        for index in range(len(loaders))
    ]


def _evaluation_step(
    trainer: Trainer, module: Module, logger: Logger, loader: int | None, batch: Any, batch_idx: int
) -> None:
    moved = trainer.strategy.convert(move(batch, trainer.strategy.device))
    step = trainer.strategy.evaluator(module, "validation_step" if logger.stage == "validate" else "test_step")
    logger.begin_step(moved, loader or 0)
    with trainer.strategy.forward():
        step(moved, batch_idx, *(() if loader is None else (loader,)))
    logger.end_step()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put the module into eval mode without gradients; afterwards every submodule is in the mode it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


def length(loader: Any, limit: int | None) -> int | None:
    """Return the number of batches, or None if that is not known."""
    try:
        count = len(loader)
    except TypeError:
        return limit
    return count if limit is None else min(count, limit)


def require(module: Module, base: type, *methods: str) -> None:
    """Check that the module overrides ``methods``.

    Raises:
        ConfigurationError: one is missing.
    """
    missing = [name for name in methods if getattr(type(module), name) is getattr(base, name)]
    if missing:
        raise ConfigurationError(f"{type(module).__name__} has no {' and no '.join(missing)}")
