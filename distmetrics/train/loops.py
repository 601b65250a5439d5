"""One epoch of training: its steps, its updates, and the validations within it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from distmetrics.collectives.ops import any_true
from distmetrics.comm.guard.places import Inside
from distmetrics.errors import ConfigurationError
from distmetrics.strategies.base import TrainingStep
from distmetrics.strategies.parallel import Averaged
from distmetrics.strategies.sampling import set_epoch
from distmetrics.train import seed
from distmetrics.train.data import agreed_batches, agreed_counts, limited, move, no_batch, with_last
from distmetrics.train.evaluation import detached, evaluate, length
from distmetrics.train.logbook import LogBook
from distmetrics.train.losses import check_finite, loss_of
from distmetrics.train.manual import is_wrapped, manual_step, warn_unstepped
from distmetrics.train.optimizers import Schedule

if TYPE_CHECKING:
    from distmetrics.train.module import Module
    from distmetrics.train.trainer import Trainer

_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass
class Position:
    """Where in an epoch a fit is.

    Attributes:
        batches: steps that are over, on each rank.
        pending: steps since the last update.
        validated_at: ``batches`` at the epoch's last validation, None before the first.
        epoch_is_over: whether all of the epoch is, its values included.
    """

    batches: int = 0
    pending: int = 0
    validated_at: int | None = None
    epoch_is_over: bool = False


@dataclass
class Run:
    """What a fit works with on this rank.

    Attributes:
        outputs: what the epoch's steps returned; kept for a module with ``training_epoch_end``.
        log: the epoch's, while there is one.
        begun: the states of random generators when the epoch's loader was opened: this process's,
            the loader's.
        resumed: what to take up when the loader is open; from a checkpoint.
        backwards: how often ``manual_backward`` was called; ``stepped_at``: how often when an
            optimizer last stepped.
        is_idle: whether an epoch of a module that does its own optimization has stepped nothing.
        step_end: the module's ``training_step_end``, if it has one.
        keeps_outputs: whether it has a ``training_epoch_end``.
        averaging: what a backward pass runs in that averages gradients, for ranks that wait
            elsewhere.
        averaged: the wrapper that averages them, where it is this project's.
    """

    module: Module
    step: TrainingStep
    optimizers: list[Optimizer]
    train_loader: Any
    val_loaders: Sequence[Any] = ()
    schedules: Sequence[Schedule] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    log: LogBook | None = None
    begun: tuple[dict[str, Any], list[Tensor]] | None = None
    resumed: Mapping[str, Any] | None = None
    backwards: int = 0
    stepped_at: dict[int, int] = field(default_factory=dict)
    is_idle: bool = False
    step_end: Callable[[Any], Any] | None = field(init=False)
    keeps_outputs: bool = field(init=False)
    averaging: AbstractContextManager[None] = field(init=False)
    averaged: Averaged | None = field(init=False)

    def __post_init__(self) -> None:
        self.step_end = getattr(self.module, "training_step_end", None)
        self.keeps_outputs = hasattr(self.module, "training_epoch_end")
        self.averaging = _NOTHING
        self.averaged = self.step if isinstance(self.step, Averaged) else None
        if is_wrapped(self.step):
            group = self.step.process_group.group_name
            self.averaging = Inside("the backward pass of a step, which averages gradients", group)


class AccumulationStep(NamedTuple):
    """A step's place in the update that it belongs to.

    Attributes:
        steps: how many steps the update has.
        ends: whether this is the last of them.
    """

    steps: int
    ends: bool


def run_epoch(trainer: Trainer, run: Run) -> None:
    """Train one epoch, or the rest of one that a checkpoint was taken in, with its validations and
    its values.
    """
    position, module = trainer.position, run.module
    due = (
        bool(run.val_loaders) and (trainer.current_epoch + 1) % trainer.check_val_every_n_epoch == 0
    )
    trainer.validated = due or not run.val_loaders
    limit = limited(run.train_loader, trainer.limit_train_batches, "limit_train_batches")
    trainer.num_batches = length(run.train_loader, limit)
    run.log = log = LogBook(
        "train", trainer.strategy.comm(), module, strict=trainer.require_same_names
    )
    if run.resumed is not None:
        log.load(run.resumed["logs"])
    with trainer.logging(log):
        if position.batches == 0:
            if run.resumed is not None:
                seed.set_states(run.resumed["rng"])
            trainer.fresh_metrics.clear()
            trainer.call("on_train_epoch_start")
        begun_at = trainer.global_step if position.batches == 0 else None
        _train(trainer, run, log, limit, due=due)
        if begun_at is not None and position.batches:
            warn_unstepped(trainer, run, begun_at)
        if run.keeps_outputs:
            end: Any = module.training_epoch_end
            end(run.outputs)
            run.outputs = []
        trainer.call("on_train_epoch_end", callbacks=False)
        trainer.note_epoch(log, log.close())
    run.log, position.epoch_is_over = None, True
    for schedule in run.schedules if module.automatic_optimization else ():
        if (
            trainer.validated
            or schedule.monitor is None
            or schedule.monitor in trainer.fresh_metrics
        ):
            schedule.step("epoch", trainer.current_epoch + 1, trainer)
    trainer.call("on_train_epoch_end", module=False)


def _train(trainer: Trainer, run: Run, log: LogBook, limit: int | None, *, due: bool) -> None:
    """Take this epoch's steps: as many as the rank with most batches has, on every rank."""
    position, comm = trainer.position, trainer.strategy.comm()
    counts = agreed_counts(run.train_loader, limit, comm)
    total = None if None in counts else max(count for count in counts if count is not None)
    every = validation_interval(trainer, total) if due else None
    start = position.batches
    batches = _opened(trainer, run, limit)
    if every and start and start % every == 0 and position.validated_at != start:
        _validate(trainer, run)  # the checkpoint was taken between the step and its validation
    agreed = agreed_batches(batches, counts, comm, start=start)
    for index, ((batch, ranks), turn) in enumerate(
        _in_turns(trainer, agreed, start, total), start=start
    ):
        if trainer.should_stop and position.validated_at == index:
            break  # a validation within the epoch said so
        trainer.absent = comm.world_size - ranks
        train_batch(trainer, run, log, batch, index, turn)
        if every and position.batches % every == 0:
            _validate(trainer, run)
        if 0 <= trainer.max_steps <= trainer.global_step:
            break
    if position.batches == 0 and limit != 0:
        raise no_batch(f"training loader in epoch {trainer.current_epoch}")
    if due and every is None and position.validated_at != position.batches:
        _validate(trainer, run)


def _opened(trainer: Trainer, run: Run, limit: int | None) -> Iterator[Any]:
    """Open the training loader, at the batch where a checkpoint was taken if there is one."""
    skipped, saved = trainer.position.batches, run.resumed
    set_epoch(run.train_loader, trainer.current_epoch)
    if saved is not None:
        seed.load_generators(run.train_loader, saved["loader_rng"])
        if skipped:
            seed.set_states(saved["epoch_rng"])
    run.begun = seed.states(), seed.generator_states(run.train_loader)
    batches = iter(itertools.islice(run.train_loader, limit))
    for _ in range(skipped):
        next(batches, None)
    if saved is not None and skipped:
        seed.set_states(saved["rng"])
    run.resumed = None
    return batches


def _in_turns(
    trainer: Trainer, agreed: Iterator[tuple[Any, int]], start: int, total: int | None
) -> Iterator[tuple[tuple[Any, int], AccumulationStep]]:
    """Yield each batch with its turn; without a length only the last batch can tell that it is."""
    steps = trainer.accumulate_grad_batches
    if total is None and steps > 1:
        for index, (item, last) in enumerate(with_last(agreed), start=start):
            yield item, AccumulationStep(steps, last or (index + 1) % steps == 0)
        return
    if steps == 1:
        turn = AccumulationStep(1, True)
        for item in agreed:
            yield item, turn
        return
    for index, item in enumerate(agreed, start=start):
        size = steps if total is None else min(steps, total - index // steps * steps)
        yield item, AccumulationStep(size, (index + 1) % steps == 0 or index + 1 == total)


def validation_interval(trainer: Trainer, total: int | None) -> int | None:
    """Return after how many steps to validate, or None for the end of the epoch.

    Raises:
        ConfigurationError: a part of an epoch without a length, or more steps than an epoch has.
    """
    interval = trainer.val_check_interval
    if isinstance(interval, float):
        if interval == 1.0:
            return None
        if total is None:
            raise ConfigurationError(
                f"val_check_interval={interval}: the training loader has no length to take a "
                "part of",
                do="say a number of steps, val_check_interval=100.",
            )
        return max(1, int(total * interval))
    if total is not None and interval > total:
        raise ConfigurationError(
            f"val_check_interval={interval}, and an epoch has {total} steps: there would be no "
            "validation",
            do="say a smaller number, or check_val_every_n_epoch=...",
        )
    return interval


def _validate(trainer: Trainer, run: Run) -> None:
    trainer.position.validated_at = trainer.position.batches
    within = trainer.validates_within_epochs
    evaluate(trainer, run.module, "validate", run.val_loaders, trainer.limit_val_batches)
    if within:
        trainer.should_stop = any_true(
            trainer.should_stop, comm=trainer.strategy.comm(), name="should_stop"
        )


def train_batch(
    trainer: Trainer, run: Run, log: LogBook, batch: Any, index: int, turn: AccumulationStep
) -> None:
    """Take one step, and the update if the step is its last."""
    module, before = run.module, trainer.global_step
    if batch is not None:
        batch = trainer.strategy.convert(move(batch, trainer.strategy.device))
        log.begin_step(batch)
    trainer.call("on_train_batch_start", batch, index, module=batch is not None)
    if module.automatic_optimization:
        outputs = _automatic(trainer, run, batch, index, turn)
    else:
        outputs = _manual(trainer, run, batch, index)
    outputs = detached(outputs)
    if batch is not None:
        trainer.call("on_train_batch_end", outputs, batch, index, callbacks=False)
        if run.keeps_outputs:
            run.outputs.append(outputs)
    log.end_step()
    log.sync_step(everyone=trainer.absent == 0)
    trainer.absent = 0
    trainer.note_step(log, updated=trainer.global_step > before)
    if module.automatic_optimization and trainer.global_step > before:
        for schedule in run.schedules:
            schedule.step("step", trainer.global_step, trainer)
    trainer.position.batches = index + 1
    trainer.call("on_train_batch_end", outputs, batch, index, module=False)
    log.leave_batch()


def _automatic(trainer: Trainer, run: Run, batch: Any, index: int, turn: AccumulationStep) -> Any:
    strategy, position = trainer.strategy, trainer.position
    with _NOTHING if turn.ends else strategy.accumulate(run.step):
        with strategy.forward():
            outputs = run.step(batch, index)
            if batch is not None and run.step_end is not None:
                outputs = run.step_end(outputs)
            loss = loss_of(outputs)
        if trainer.terminate_on_nan:
            check_finite(trainer, loss, index)
        if loss is not None:
            ranks = trainer.world_size - trainer.absent
            # A mean over all ranks counts those without a batch: this makes it the mean over those
            # with one.
            weight = (trainer.world_size / ranks if trainer.absent else 1.0) / turn.steps
            trainer.call("on_before_backward", loss)
            with run.averaging if turn.ends else _NOTHING:
                strategy.backward(loss if weight == 1.0 else loss * weight)
            trainer.call("on_after_backward")
            position.pending += 1
    if turn.ends and position.pending:
        if run.averaged is not None:
            run.averaged.check_averaged()
        trainer.update(run.optimizers[0], clip=trainer.gradient_clip_val)
        position.pending = 0
    return outputs


def _manual(trainer: Trainer, run: Run, batch: Any, index: int) -> Any:
    if trainer.absent:
        raise ConfigurationError(
            f"{trainer.absent} of {trainer.world_size} ranks have no batch for step {index}, and "
            "the module's "
            "optimization is manual: they can't know which steps its optimizers take",
            do="give every rank as many batches, drop_last=True or limit_train_batches=..., say.",
            rank=trainer.global_rank,
        )
    with trainer.strategy.forward():
        outputs = manual_step(run.step, run.module)(batch, index)
        return outputs if run.step_end is None else run.step_end(outputs)
