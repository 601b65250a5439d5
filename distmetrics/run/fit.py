"""The fit under way on one rank: what it works with, its epochs, its steps and its updates."""

import itertools
import warnings
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from distmetrics.collectives.ops import all_gather, all_reduce, any_true
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import ConfigurationError, InputError
from distmetrics.run import seed as random_state
from distmetrics.run.batches import (
    agreed_batches,
    agreed_counts,
    check_not_empty,
    length,
    limited,
    no_batch,
    with_last,
)
from distmetrics.run.context import RunContext, note_epoch, note_step
from distmetrics.run.data import TrainerCall
from distmetrics.run.evaluation import evaluate, new_log
from distmetrics.run.logbook import LogBook
from distmetrics.run.module import Module, overrides, require
from distmetrics.run.run import Run
from distmetrics.run.runner import check_loss
from distmetrics.run.schedules import configured
from distmetrics.run.wrapped import RunnerModule, RunnerOptimizer
from distmetrics.strategies.tensors import map_tensors, parameters_of
from distmetrics.strategies.weighted_gradients import weight_number

EpochRng = tuple[dict[str, Any], list[Tensor]]


class AccumulationStep(NamedTuple):
    """A step's place in the update that it belongs to.

    Attributes:
        steps: so many make the update, as far as is known.
        is_last: whether it is the update's last.
        taken: how many there are up to this one; at the end of a stream fewer than was thought.
    """

    steps: int
    is_last: bool
    taken: int


class Fit:
    """Trains a module epoch by epoch.

    Args:
        run: whose module is trained.
        call: what the user asks for.

    Attributes:
        model: what the runner has made of the module; ``optimizers`` likewise.
        progress: how far the fit is.
        outputs: what the epoch's steps returned; kept for a module with ``training_epoch_end``.
        log: the epoch's, while there is one.
        epoch_rng: the states of random generators when the epoch's loader was opened: this
            process's, the loader's.
        resumed: what to take up when the loader is open; from a checkpoint.
    """

    def __init__(self, run: Run, call: TrainerCall) -> None:
        self.run = run
        self.trainer, self.module, self.comm = run.trainer, run.module, run.comm
        self.runner, self.config = run.trainer.runner, run.trainer.config
        self.progress = run.trainer.progress
        self.outputs: list[Any] = []
        self.log: LogBook | None = None
        self.epoch_rng: EpochRng | None = None
        self.resumed: Mapping[str, Any] | None = None
        self._step_end = getattr(run.module, "training_step_end", None)
        self._keeps_outputs = hasattr(run.module, "training_epoch_end")
        self._has_warned = False
        self._backwards = 0  # calls of manual_backward
        self._stepped_at: dict[RunnerOptimizer, int] = {}  # of these calls
        module = run.module
        optimizers, self.schedules = configured(
            module.configure_optimizers(), module, automatic=module.automatic_optimization
        )
        _check_manual(run.trainer, module)
        _check_learns(run.trainer, module)
        self.model: RunnerModule
        self.optimizers: list[RunnerOptimizer]
        self.model, *self.optimizers = self.runner.setup(module, *optimizers, move_to_device=False)
        if not module.automatic_optimization:
            self.model._runner.share_by_hand()
        for optimizer in self.optimizers:
            optimizer.zero_grad()  # whatever was there before this fit
        (self.train_loader,) = run.dealt(call.loaders(module), train=True)
        self.val_loaders = _val_loaders(run, call)

    def train(self) -> None:
        """Train until a limit is reached, or training is to stop."""
        trainer, config, progress = self.trainer, self.config, self.progress
        while not (config.is_reached(progress.epoch, progress.global_step) or trainer.should_stop):
            self._train_epoch()
            if config.max_epochs in (None, -1) and progress.global_step == 0:
                raise ConfigurationError(
                    "max_steps was given, and an epoch took no step: no rank has a training batch, "
                    "or training_step returned None",
                    do="look at the training data, or say max_epochs=....",
                )
            progress.begin_epoch(progress.epoch + 1)
            for logger in trainer.loggers if trainer.is_global_zero else ():
                logger.save()
            self._agree_to_stop()

    def _agree_to_stop(self) -> None:
        trainer = self.trainer
        trainer.should_stop = any_true(trainer.should_stop, comm=self.comm, name="should_stop")

    def _train_epoch(self) -> None:
        """Train one epoch, or the rest of one that a checkpoint was taken in."""
        trainer, run, module, progress = self.trainer, self.run, self.module, self.progress
        is_due = (progress.epoch + 1) % self.config.check_val_every_n_epoch == 0
        is_due = is_due and bool(self.val_loaders)
        trainer.values.validated = is_due or not self.val_loaders
        limit = limited(self.train_loader, self.config.limit_train_batches, "limit_train_batches")
        self.log = log = new_log(run, "train")
        if self.resumed is not None:
            log.load(self.resumed["logs"])
        with run.logging(log, length(self.train_loader, limit)):
            is_whole = progress.batches == 0
            step_before = progress.global_step
            if is_whole:
                if self.resumed is not None:
                    random_state.set_states(self.resumed["rng"])
                trainer.values.fresh_metrics.clear()
                run.call("on_train_epoch_start")
            is_over = self._take_steps(limit, is_due=is_due)
            if is_whole and progress.batches and progress.global_step == step_before:
                self._warn_idle()
            if self._keeps_outputs:
                epoch_end: Any = module.training_epoch_end
                epoch_end(self.outputs)
                self.outputs = []
            run.call("on_train_epoch_end", callbacks=False)
            note_epoch(trainer, log, log.close(), "train")
        self.log, progress.epoch_is_over = None, is_over
        for schedule in self.schedules if module.automatic_optimization and is_over else ():
            name, values = schedule.monitor, trainer.values
            if values.validated or name is None or name in values.fresh_metrics:
                schedule.step("epoch", progress.epoch + 1, values)
        run.call("on_train_epoch_end", module=False)

    def _take_steps(self, limit: int | None, *, is_due: bool) -> bool:
        """Take as many steps as the rank with most batches has, on every rank.

        Returns:
            whether the epoch is over, and ``max_steps`` leaves nothing of it.
        """
        trainer, progress = self.trainer, self.progress
        likely = "an empty data set, or fewer samples than a batch and drop_last=True."
        (counts,) = agreed_counts([self.train_loader], [limit], "training", self.comm, likely)
        known = [count for count in counts if count is not None]
        total = max(known) if len(known) == len(counts) else None
        every = _validation_interval(trainer, total) if is_due else None
        start = progress.batches
        batches = self._opened(limit)
        if every and start and start % every == 0 and progress.validated_at != start:
            self._validate()  # the checkpoint was taken between the step and its validation
        agreed = agreed_batches(batches, counts, self.comm, start=start)
        placed = _with_places(agreed, self.config.accumulate_grad_batches, start, total)
        is_over = True
        for index, ((batch, ranks), place) in enumerate(placed, start=start):
            if trainer.should_stop and progress.validated_at == index:
                break  # a validation within the epoch said so
            trainer.absent_ranks = self.comm.world_size - ranks
            self._take_step(batch, index, place)
            if every and progress.batches % every == 0:
                self._validate()
            if 0 <= self.config.max_steps <= progress.global_step:
                is_over = total is None or progress.batches == total
                break
        if progress.batches == 0 and limit != 0:
            raise no_batch(f"training loader in epoch {progress.epoch}")
        if is_due and every is None and progress.validated_at != progress.batches:
            # A fit that goes on within the epoch draws the numbers that this one would have drawn.
            with nullcontext() if is_over else random_state.keep(*self.val_loaders):
                self._validate()
        return is_over

    def _opened(self, limit: int | None) -> Iterator[Any]:
        """Open the training loader, at the batch where a checkpoint was taken if there is one."""
        saved, loader, skipped = self.resumed, self.train_loader, self.progress.batches
        loader.set_epoch(self.progress.epoch)
        if saved is not None:
            random_state.load_generators(loader, saved["loader_rng"])
            if skipped:
                random_state.set_states(saved["epoch_rng"])
        self.epoch_rng = random_state.states(), random_state.generator_states(loader)
        batches = iter(itertools.islice(loader, limit))
        for _ in range(skipped):
            next(batches, None)
        if saved is not None and skipped:
            random_state.set_states(saved["rng"])
        self.resumed = None
        return batches

    def _validate(self) -> None:
        self.progress.validated_at = self.progress.batches
        evaluate(self.run, "validate", self.val_loaders)
        if self.trainer.values.within_epochs:
            self._agree_to_stop()

    def _warn_idle(self) -> None:
        """Warn, once a fit, of a module that is to step its optimizers and has not."""
        is_told = self._has_warned or self.module.automatic_optimization
        self._has_warned = True
        if self.trainer.is_global_zero and not is_told:
            warnings.warn(
                f"{type(self.module).__name__} does its own optimization (automatic_optimization "
                f"= False), and has stepped none of self.optimizers() in epoch "
                f"{self.progress.epoch}: global_step is still {self.progress.global_step}. In "
                "training_step, call self.manual_backward(loss) and then step() of what "
                "self.optimizers() returns.",
                stacklevel=2,
            )

    def _take_step(self, batch: Any, index: int, place: AccumulationStep) -> None:
        """Take one step, and the update if the step is its last; ``batch`` None is no batch."""
        trainer, module, call, progress = self.trainer, self.module, self.run.call, self.progress
        log = self.log
        assert log is not None
        step_before = progress.global_step
        has_batch = batch is not None
        if has_batch:
            batch = self.runner.strategy.convert(batch)
            log.begin_step(batch)
        call("on_train_batch_start", batch, index, module=has_batch)
        step = self._automatic if module.automatic_optimization else self._manual
        # Detached, so that keeping outputs keeps no graph.
        outputs = map_tensors(Tensor.detach, step(batch, index, place))
        if has_batch:
            call("on_train_batch_end", outputs, batch, index, callbacks=False)
            if self._keeps_outputs:
                self.outputs.append(outputs)
        log.end_step()
        log.sync_step(everyone=trainer.absent_ranks == 0)
        trainer.absent_ranks = 0
        is_updated = progress.global_step > step_before
        note_step(trainer, log, updated=is_updated)
        if is_updated and module.automatic_optimization:
            for schedule in self.schedules:
                schedule.step("step", progress.global_step, trainer.values)
        progress.batches = index + 1
        call("on_train_batch_end", outputs, batch, index, module=False)
        log.leave_batch()

    def _outputs(self, batch: Any, index: int) -> Any:
        """Return what ``training_step`` returns; without a batch a loss of 0."""
        calls = self.model._runner
        if batch is None and self.trainer.absent_ranks:
            return calls.call_without_batch()
        outputs = calls.call_with(((batch, index), {}), "training_step")
        if self._step_end is not None and batch is not None:
            with self.runner.autocast():
                outputs = self._step_end(outputs)
        return outputs

    def _automatic(self, batch: Any, index: int, place: AccumulationStep) -> Any:
        """Take a step whose backward pass and update are the trainer's."""
        calls, progress = self.model._runner, self.progress
        with nullcontext() if place.is_last else calls.keeping_gradients():
            outputs = self._outputs(batch, index)
            loss, weight = _loss_and_weight(outputs)
            if loss is None and self.comm.world_size > 1:
                raise ConfigurationError(
                    "training_step returned None: a step that one rank skips leaves the others "
                    "waiting",
                    do="return a loss on every rank; `loss * 0` contributes nothing.",
                )
            if self.config.terminate_on_nan:
                # The mean over nothing is NaN.
                check_finite(self.trainer, None if weight == 0 else loss, index)
            if loss is not None:
                self._backward(loss, weight, place, has_batch=batch is not None)
                progress.pending += 1
        if place.is_last and progress.pending:
            calls.gradients.finish()  # where the last step had no loss
            if place.taken < place.steps:
                calls.gradients.correct_mean(place.steps / place.taken)
            self._update(self.optimizers[0])
            progress.pending = 0
        return outputs

    def _backward(
        self, loss: Tensor, weight: float | None, place: AccumulationStep, *, has_batch: bool
    ) -> None:
        size, absent = self.comm.world_size, self.trainer.absent_ranks
        # A rank without a batch has no tokens, and does not know whether the others weigh theirs.
        if absent and any_true(weight is not None, comm=self.comm, name="weight of losses"):
            weight = weight if has_batch else 0.0
        elif weight is None:
            # The mean over all ranks counts those without a batch. The factor makes it the mean
            # over those that have one.
            factor = (size / (size - absent) if absent else 1.0) / place.steps
            loss = loss if factor == 1.0 else loss * factor
        self.run.call("on_before_backward", loss)
        self.runner.add_gradients(loss, [self.model], weight)
        self.run.call("on_after_backward")

    def _update(self, optimizer: RunnerOptimizer) -> None:
        """Let an optimizer step with the gradients that are there, and clear them."""
        self.run.call("on_before_optimizer_step", optimizer.optimizer)
        if (norm := self.config.gradient_clip_val) is not None:
            self.runner.clip_gradients(self.model, optimizer, max_norm=norm)
        optimizer.step()
        optimizer.zero_grad()
        self.progress.global_step += 1

    def _manual(self, batch: Any, index: int, place: AccumulationStep) -> Any:
        """Take a step that does its own backward passes and updates."""
        trainer = self.trainer
        if trainer.absent_ranks:
            raise ConfigurationError(
                f"{trainer.absent_ranks} of {trainer.world_size} ranks have no batch for step "
                f"{index}, and the module's optimization is manual: they can't know which steps "
                "its optimizers take",
                do="give every rank as many batches, by drop_last=True or limit_train_batches=....",
                rank=trainer.global_rank,
            )
        return self._outputs(batch, index)

    def manual_backward(self, loss: Tensor, weight: float | Tensor | None) -> None:
        """Compute the gradients of a loss in a step that does so itself."""
        check_loss(loss, "the loss")
        self.run.call("on_before_backward", loss)
        self.runner.add_gradients(loss, [self.model], weight)
        self._backwards += 1
        if self.model._runner.shares_by_hand:
            share_gradients(self.module, self.comm)
        self.run.call("on_after_backward")

    def manual_step(self, optimizer: RunnerOptimizer) -> None:
        """Let an optimizer step, with the gradients that ``manual_backward`` has made.

        Raises:
            ConfigurationError: it has made none since the optimizer's last step.
        """
        before = self._stepped_at.get(optimizer, 0)
        self._stepped_at[optimizer] = self._backwards
        has_gradients = any(p.grad is not None for p in parameters_of(optimizer))
        if self.comm.world_size > 1 and has_gradients and before == self._backwards:
            raise ConfigurationError(
                f"{type(self.module).__name__} steps its {type(optimizer.optimizer).__name__} with "
                "gradients that manual_backward has not made: they are this rank's alone, and the "
                "ranks' weights would part",
                do="self.manual_backward(loss) in training_step, not loss.backward().",
                rank=self.comm.rank,
            )
        self._update(optimizer)


def _val_loaders(run: Run, call: TrainerCall) -> list[Any]:
    """Return the loaders to validate on; none if there is nothing to validate by."""
    trainer, module = run.trainer, run.module
    config, values = trainer.config, trainer.values
    # A data module may have more than this module needs.
    is_wanted = call.val_dataloaders is not None or overrides(module, "validation_step")
    loaders = []
    if is_wanted and config.limit_val_batches != 0:
        loaders = run.dealt(call.loaders_to_validate(module))
    values.within_epochs = bool(loaders) and config.validates_within_epochs
    if not loaders:
        return []
    require(module, "validation_step")
    check_not_empty(loaders, "validation", run.comm)
    last, every = config.max_epochs, config.check_val_every_n_epoch
    if trainer.is_global_zero and last is not None and 0 < last < every:
        warnings.warn(
            f"check_val_every_n_epoch={every} and max_epochs={last}: this fit never validates, "
            "and what watches a value of validation never acts. Say a smaller "
            "check_val_every_n_epoch, or limit_val_batches=0 where that is meant.",
            stacklevel=2,
        )
    return loaders


def _check_manual(trainer: RunContext, module: Module) -> None:
    """Refuse flags and strategies that don't go with a module's own optimization."""
    if module.automatic_optimization:
        return
    name, strategy = type(module).__name__, trainer.strategy
    if not strategy.manual:
        raise ConfigurationError(
            f"{name} does its own optimization, and strategy={strategy.name!r} splits what it "
            "would step",
            do="say strategy='ddp' or 'ddp_sharded', or use one optimizer and leave it to the "
            "trainer.",
        )
    for flag, default in (("accumulate_grad_batches", 1), ("gradient_clip_val", None)):
        value = getattr(trainer.config, flag)
        if value != default:
            raise ConfigurationError(
                f"{flag}={value}, and {name} does its own optimization",
                do="do it in training_step, and drop the flag.",
            )


def _check_learns(trainer: RunContext, module: Module) -> None:
    """Refuse a module without anything to learn: what is unfrozen later is not averaged."""
    learns = any(parameter.requires_grad for parameter in module.parameters())
    if not learns and trainer.world_size > 1:
        raise ConfigurationError(
            f"{type(module).__name__} has no parameter that is to be learnt: all are frozen",
            do="unfreeze some by requires_grad_(True) before, in configure_optimizers at the "
            "latest.",
        )


def _with_places(
    items: Iterator[Any], steps: int, start: int, total: int | None
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
        yield item, AccumulationStep(size, is_last, (number - 1) % steps + 1)


def _validation_interval(trainer: RunContext, total: int | None) -> int | None:
    """Return after how many steps to validate, or None for the end of the epoch."""
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


def _loss_and_weight(outputs: Any) -> tuple[Tensor | None, float | None]:
    """Return the loss in what ``training_step`` returned, None to skip the step, and its weight."""
    if outputs is None:
        return None, None
    loss, weight = outputs, None
    if isinstance(outputs, Mapping):
        loss, weight = outputs.get("loss"), outputs.get("weight")
    check_loss(loss, "what training_step returns, or has under 'loss',")
    return loss, None if weight is None else weight_number(weight)


def check_finite(trainer: RunContext, loss: Tensor | None, index: int) -> None:
    """Refuse a loss that is no number on some rank, on every rank; one exchange a step."""
    own = torch.zeros((), device="cpu")
    if loss is not None:
        own = loss.detach().float().reshape(()).cpu()
    losses = all_gather(own, comm=trainer.strategy.comm(), name="loss").tolist()
    if all(abs(value) < float("inf") for value in losses):
        return
    raise InputError(
        f"the loss is not finite in step {index} of epoch {trainer.current_epoch}",
        per_rank={rank: f"loss {value:.6g}" for rank, value in enumerate(losses)},
        notes=["The step's update was not made."],
        likely="a learning rate that is too high, a logarithm or a root of 0, or NaN in the batch.",
        do="look at that batch; Trainer(detect_anomaly=True) names the operation that made it.",
        rank=trainer.global_rank,
    )


def share_gradients(module: nn.Module, comm: Communicator) -> None:
    """Make every gradient the mean over all ranks; one that only some ranks have counts as zero."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if comm.world_size == 1 or not trained:
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    has_gradient = torch.tensor([float(p.grad is not None) for p in trained], device="cpu")
    counts, sums = all_reduce((has_gradient, gradients), comm=comm, name="gradients")
    for parameter, count, total in zip(trained, counts.tolist(), sums, strict=True):
        if count:
            parameter.grad = total / comm.world_size
