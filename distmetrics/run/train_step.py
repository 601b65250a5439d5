"""One step of training, and the update that it may end."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.ops import all_gather, any_true
from distmetrics.errors import ConfigurationError, InputError
from distmetrics.run.context import RunContext, note_step
from distmetrics.run.fit_state import FitState, is_wrapped
from distmetrics.run.run import Run
from distmetrics.strategies.base import Inputs
from distmetrics.strategies.ddp import Averaged
from distmetrics.strategies.tensors import map_tensors
from distmetrics.strategies.weighted_gradients import weight_number
from distmetrics.tree import move


class AccumulationStep(NamedTuple):
    """A step's place in the update that it belongs to.

    Attributes:
        steps: how many steps the update has.
        is_last: True for the last of them.
    """

    steps: int
    is_last: bool


class TrainStep:
    """Takes the steps of a fit.

    Args:
        run: whose module is trained.
        fit: what it works with.
    """

    def __init__(self, run: Run, fit: FitState) -> None:
        self.run, self.fit = run, fit
        self.trainer, self.module = run.trainer, run.module
        self.config, self.strategy = run.trainer.config, run.trainer.strategy
        self.step_end = getattr(run.module, "training_step_end", None)
        self.keeps_outputs = hasattr(run.module, "training_epoch_end")

    def take(self, batch: Any, index: int, place: AccumulationStep) -> None:
        """Take one step, and the update if the step is its last; ``batch`` None is no batch."""
        trainer, module = self.trainer, self.module
        fit, call = self.fit, self.run.call
        log = trainer.log
        assert log is not None
        progress = fit.progress
        before = progress.global_step
        has_batch = batch is not None
        if has_batch:
            batch = self.strategy.convert(move(batch, self.strategy.device))
            log.begin_step(batch)
        call("on_train_batch_start", batch, index, module=has_batch)
        step = self._automatic if module.automatic_optimization else self._manual
        outputs = detached(step(batch, index, place))
        if has_batch:
            call("on_train_batch_end", outputs, batch, index, callbacks=False)
            if self.keeps_outputs:
                fit.outputs.append(outputs)
        log.end_step()
        log.sync_step(everyone=trainer.absent_ranks == 0)
        trainer.absent_ranks = 0
        is_updated = progress.global_step > before
        note_step(trainer, log, updated=is_updated)
        if is_updated and module.automatic_optimization:
            for schedule in fit.schedules:
                schedule.step("step", progress.global_step, trainer.values)
        progress.batches = index + 1
        call("on_train_batch_end", outputs, batch, index, module=False)
        log.leave_batch()

    def _automatic(self, batch: Any, index: int, place: AccumulationStep) -> Any:
        """Take a step whose backward pass and update are the trainer's."""
        fit, strategy, progress = self.fit, self.strategy, self.fit.progress
        with nullcontext() if place.is_last else strategy.accumulate(fit.step):
            with strategy.forward():
                outputs = self._step_outputs(batch, index)
                if batch is not None and self.step_end is not None:
                    outputs = self.step_end(outputs)
                loss, weight = loss_of(outputs), weight_of(outputs)
            if self.config.terminate_on_nan:
                # The mean over nothing is NaN.
                check_finite(self.trainer, None if weight == 0 else loss, index)
            if loss is not None:
                self._backward(loss, weight, place, has_batch=batch is not None)
                progress.pending += 1
        if place.is_last and progress.pending:
            fit.weighted.finish(fit.gradients)  # where the last step had no loss
            if isinstance(fit.step, Averaged):
                fit.step.check_averaged()
            fit.update(fit.optimizers[0], clip=self.config.gradient_clip_val)
            progress.pending = 0
        return outputs

    def _step_outputs(self, batch: Any, index: int) -> Any:
        """Call the strategy's step; without a batch its loss is 0."""
        is_absent = batch is None and self.trainer.absent_ranks > 0
        inputs: Inputs | None = None if is_absent else ((batch, index), {})
        outputs = self.fit.step(inputs, "training_step")
        if outputs is None and self.run.comm.world_size > 1:
            raise ConfigurationError(
                "training_step returned None: a step that one rank skips leaves the others waiting",
                do="return a loss on every rank; `loss * 0` contributes nothing.",
            )
        return outputs

    def _backward(
        self, loss: Tensor, weight: float | None, place: AccumulationStep, *, has_batch: bool
    ) -> None:
        size, absent = self.run.comm.world_size, self.trainer.absent_ranks
        # A rank without a batch has no tokens, and does not know whether the others weigh theirs.
        is_any = absent and any_true(
            weight is not None, comm=self.run.comm, name="weight of losses"
        )
        if is_any and not has_batch:
            weight = 0.0
        if weight is None:
            # The mean over all ranks counts those without a batch. The factor makes it the mean
            # over those that have one.
            factor = (size / (size - absent) if absent else 1.0) / place.steps
            loss = loss if factor == 1.0 else loss * factor
        self.fit.backward(loss, weight, is_last=place.is_last)

    def _manual(self, batch: Any, index: int, place: AccumulationStep) -> Any:
        """Take a step that does its own backward passes and updates."""
        trainer, fit = self.trainer, self.fit
        if trainer.absent_ranks:
            raise ConfigurationError(
                f"{trainer.absent_ranks} of {trainer.world_size} ranks have no batch for step "
                f"{index}, and the module's optimization is manual: they can't know which steps "
                "its optimizers take",
                do="give every rank as many batches, by drop_last=True or limit_train_batches=....",
                rank=trainer.global_rank,
            )
        with self.strategy.forward():
            if is_wrapped(fit.step):
                outputs = self.module.training_step(batch, index)
            else:
                outputs = fit.step(((batch, index), {}), "training_step")
            return outputs if self.step_end is None else self.step_end(outputs)


def detached(outputs: Any) -> Any:
    """Return a step's outputs without gradients, so that keeping them keeps no graph."""
    return map_tensors(Tensor.detach, outputs)


def loss_of(outputs: Any) -> Tensor | None:
    """Return the loss in what ``training_step`` returned, or None to skip the step.

    Raises:
        InputError: there is none, it is no scalar tensor, or it has no gradient.
    """
    if outputs is None:
        return None
    is_dict = not isinstance(outputs, Tensor) and isinstance(outputs, Mapping)
    loss = outputs.get("loss") if is_dict else outputs
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        kind = f"a {type(loss).__name__}"
        if isinstance(loss, Tensor):
            kind = f"a tensor of shape {list(loss.shape)}"
        raise InputError(
            "training_step must return a loss of one element, or a dict with such under 'loss'; "
            f"got {kind}"
        )
    if not loss.requires_grad:
        raise InputError(
            "the loss of training_step has no gradient",
            likely="it was computed from something detached, under no_grad, or every parameter "
            "is frozen.",
            do="return the loss as it was computed; log loss.detach(), if you must.",
        )
    return loss


def weight_of(outputs: Any) -> float | None:
    """Return what the loss in what ``training_step`` returned is the mean of, or None.

    Raises:
        InputError: it is no number from 0 on.
    """
    is_dict = not isinstance(outputs, Tensor) and isinstance(outputs, Mapping)
    weight = outputs.get("weight") if is_dict else None
    return None if weight is None else weight_number(weight)


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
