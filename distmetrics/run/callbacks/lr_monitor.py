"""Log learning rates."""

from typing import Any, Literal

from distmetrics.arguments import check, one_of
from distmetrics.run.callbacks.base import Callback
from distmetrics.run.context import RunContext
from distmetrics.run.module import Module


class LearningRateMonitor(Callback):
    """Log every optimizer's learning rate as ``lr-Adam``, of a group as ``lr-Adam/pg1``.

    The values go to the loggers, and to ``trainer.callback_metrics``. A scheduler's ``name`` stands
    in the place of ``lr-Adam``.

    Args:
        logging_interval: "step" (each that loggers hear of), "epoch", or None for both.
    """

    def __init__(self, logging_interval: Literal["step", "epoch"] | None = None) -> None:
        rule = one_of("step", "epoch").or_none()
        check("LearningRateMonitor", locals(), {"logging_interval": rule})
        self.logging_interval = logging_interval

    def on_train_batch_start(
        self,
        trainer: RunContext,
        module: Module,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log the rates that the step will use."""
        is_due = trainer.global_step % trainer.config.log_every_n_steps == 0
        if is_due and self.logging_interval != "epoch":
            trainer.log_values(rates(trainer))

    def on_train_epoch_start(self, trainer: RunContext, module: Module) -> None:
        """Log the rates that the epoch begins with."""
        if self.logging_interval != "step":
            trainer.log_values(rates(trainer))


def rates(trainer: RunContext) -> dict[str, float]:
    """Return the learning rates of all optimizers by name."""
    fit = trainer.fit_state
    if fit is None:
        return {}
    schedules = [schedule for schedule in fit.schedules if schedule.name]
    names = {id(schedule.scheduler.optimizer): schedule.name for schedule in schedules}
    values = {}
    taken = set()
    for optimizer in trainer.optimizers:
        name = first = names.get(id(optimizer)) or f"lr-{type(optimizer).__name__}"
        number = 1
        while name in taken:
            name, number = f"{first}-{number}", number + 1
        taken.add(name)
        groups = optimizer.param_groups
        for index, group in enumerate(groups, start=1):
            values[f"{name}/pg{index}" if len(groups) > 1 else name] = float(group["lr"])
    return values
