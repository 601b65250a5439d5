"""One epoch of training: its steps, and the validations within it."""

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

from distmetrics.collectives.ops import any_true
from distmetrics.data.sharding import set_epoch
from distmetrics.errors import ConfigurationError
from distmetrics.run import seed
from distmetrics.run.batches import (
    agreed_batches,
    agreed_counts,
    length,
    limited,
    no_batch,
    with_last,
)
from distmetrics.run.context import RunContext, note_epoch
from distmetrics.run.evaluation import evaluate, new_log
from distmetrics.run.fit_state import FitState
from distmetrics.run.run import Run
from distmetrics.run.train_step import AccumulationStep, TrainStep


class FitLoop:
    """Trains epoch by epoch.

    Args:
        run: whose module is trained.
        fit: what it works with.
    """

    def __init__(self, run: Run, fit: FitState) -> None:
        self.run, self.fit = run, fit
        self.trainer, self.module = run.trainer, run.module
        self.config, self.comm = run.trainer.config, run.comm
        self.step = TrainStep(run, fit)
        self._warned = False

    def run_epoch(self) -> None:
        """Train one epoch, or the rest of one that a checkpoint was taken in."""
        trainer, fit, run, module = self.trainer, self.fit, self.run, self.module
        every = self.config.check_val_every_n_epoch
        is_due = bool(fit.val_loaders) and (fit.progress.epoch + 1) % every == 0
        trainer.values.validated = is_due or not fit.val_loaders
        limit = limited(fit.train_loader, self.config.limit_train_batches, "limit_train_batches")
        fit.log = log = new_log(run, "train")
        if fit.resumed is not None:
            log.load(fit.resumed["logs"])
        with run.logging(log, length(fit.train_loader, limit)):
            is_whole = fit.progress.batches == 0
            step_before = fit.progress.global_step
            if is_whole:
                if fit.resumed is not None:
                    seed.set_states(fit.resumed["rng"])
                trainer.values.fresh_metrics.clear()
                run.call("on_train_epoch_start")
            self._take_steps(limit, is_due=is_due)
            if is_whole and fit.progress.batches and fit.progress.global_step == step_before:
                self._warn_idle()
            if self.step.keeps_outputs:
                epoch_end: Any = module.training_epoch_end
                epoch_end(fit.outputs)
                fit.outputs = []
            run.call("on_train_epoch_end", callbacks=False)
            note_epoch(trainer, log, log.close(), "train")
        fit.log, fit.progress.epoch_is_over = None, True
        self._step_epoch_schedules()
        run.call("on_train_epoch_end", module=False)

    def _step_epoch_schedules(self) -> None:
        values = self.trainer.values
        for schedule in self.fit.schedules if self.module.automatic_optimization else ():
            name = schedule.monitor
            if values.validated or name is None or name in values.fresh_metrics:
                schedule.step("epoch", self.fit.progress.epoch + 1, values)

    def _take_steps(self, limit: int | None, *, is_due: bool) -> None:
        """Take as many steps as the rank with most batches has, on every rank."""
        trainer, progress = self.trainer, self.fit.progress
        likely = "an empty data set, or fewer samples than a batch and drop_last=True."
        loaders = [self.fit.train_loader]
        (counts,) = agreed_counts(loaders, [limit], "training", self.comm, likely)
        known = [count for count in counts if count is not None]
        total = max(known) if len(known) == len(counts) else None
        every = validation_interval(trainer, total) if is_due else None
        start = progress.batches
        batches = self._opened(limit)
        if every and start and start % every == 0 and progress.validated_at != start:
            self._validate()  # the checkpoint was taken between the step and its validation
        agreed = agreed_batches(batches, counts, self.comm, start=start)
        placed = _with_places(agreed, self.config.accumulate_grad_batches, start, total)
        for index, ((batch, ranks), place) in enumerate(placed, start=start):
            if trainer.should_stop and progress.validated_at == index:
                break  # a validation within the epoch said so
            trainer.absent_ranks = self.comm.world_size - ranks
            self.step.take(batch, index, place)
            if every and progress.batches % every == 0:
                self._validate()
            if 0 <= self.config.max_steps <= progress.global_step:
                break
        if progress.batches == 0 and limit != 0:
            raise no_batch(f"training loader in epoch {progress.epoch}")
        if is_due and every is None and progress.validated_at != progress.batches:
            self._validate()

    def _opened(self, limit: int | None) -> Iterator[Any]:
        """Open the training loader, at the batch where a checkpoint was taken if there is one."""
        fit, saved = self.fit, self.fit.resumed
        loader, skipped = fit.train_loader, fit.progress.batches
        set_epoch(loader, fit.progress.epoch)
        if saved is not None:
            seed.load_generators(loader, saved["loader_rng"])
            if skipped:
                seed.set_states(saved["epoch_rng"])
        fit.epoch_rng = seed.states(), seed.generator_states(loader)
        batches = iter(itertools.islice(loader, limit))
        for _ in range(skipped):
            next(batches, None)
        if saved is not None and skipped:
            seed.set_states(saved["rng"])
        fit.resumed = None
        return batches

    def _validate(self) -> None:
        trainer, fit = self.trainer, self.fit
        fit.progress.validated_at = fit.progress.batches
        evaluate(self.run, "validate", fit.val_loaders)
        if trainer.values.within_epochs:
            trainer.should_stop = any_true(trainer.should_stop, comm=self.comm, name="should_stop")

    def _warn_idle(self) -> None:
        """Warn, once a fit, of a module that is to step its optimizers and has not."""
        if self.module.automatic_optimization or self._warned:
            return
        self._warned = True
        if self.trainer.is_global_zero:
            progress = self.fit.progress
            warnings.warn(
                f"{type(self.module).__name__} does its own optimization (automatic_optimization "
                f"= False), and has stepped none of self.optimizers() in epoch {progress.epoch}: "
                f"global_step is still {progress.global_step}. In training_step, call "
                "self.manual_backward(loss) and then step() of what self.optimizers() returns.",
                stacklevel=2,
            )


def _with_places(
    items: Iterator[Any],
    steps: int,
    start: int,
    total: int | None,
) -> Iterator[tuple[Any, AccumulationStep]]:
    """Yield each item and its place among the ``steps`` of an update.

    Args:
        items: batches, from number ``start`` on.
        steps: as many make an update; at the end of an epoch fewer do.
        start: how many batches of the epoch are over.
        total: batches of the epoch; None looks one ahead for the last.
    """
    looks_ahead = total is None and steps > 1
    pairs = with_last(items) if looks_ahead else ((item, False) for item in items)
    for number, (item, is_end) in enumerate(pairs, start=start + 1):
        size = steps if total is None else min(steps, total - (number - 1) // steps * steps)
        is_last = is_end or number % steps == 0 or number == total
        yield item, AccumulationStep(size, is_last)


def validation_interval(trainer: RunContext, total: int | None) -> int | None:
    """Return after how many steps to validate, or None for the end of the epoch.

    Raises:
        ConfigurationError: a part of an epoch without a length, or more steps than an epoch has.
    """
    interval = trainer.config.val_check_interval
    if not trainer.config.validates_within_epochs:
        return None
    if isinstance(interval, float):
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
