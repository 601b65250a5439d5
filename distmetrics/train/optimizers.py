"""What ``configure_optimizers`` may return, and when learning rates change."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from distmetrics.arguments import describe
from distmetrics.errors import ConfigurationError
from distmetrics.train.callbacks.monitor import not_logged

if TYPE_CHECKING:
    from distmetrics.train.state import TrainerState

Interval = Literal["epoch", "step"]
_FORMS = "Do:     return an optimizer, ([optimizer], [scheduler]), or {'optimizer': ..., 'lr_scheduler': ...}."


@dataclass
class Schedule:
    """A learning-rate scheduler, and when it steps.

    Attributes:
        scheduler: torch's.
        interval: after each "epoch" or each optimizer "step".
        frequency: every how many of those.
        monitor: the logged value that ``ReduceLROnPlateau`` wants.
        name: what ``LearningRateMonitor`` calls it.
    """

    scheduler: Any
    interval: Interval = "epoch"
    frequency: int = 1
    monitor: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if not callable(getattr(self.scheduler, "step", None)) or not hasattr(
            self.scheduler, "state_dict"
        ):
            raise ConfigurationError(
                f"a scheduler has step() and state_dict(), got {describe(self.scheduler)}\n{_FORMS}"
            )
        if (
            isinstance(self.frequency, bool)
            or not isinstance(self.frequency, int)
            or self.frequency < 1
        ):
            raise ConfigurationError(
                f"the frequency of a scheduler is a positive number, got {self.frequency!r}"
            )
        if "metrics" not in inspect.signature(self.scheduler.step).parameters:
            self.monitor = (
                None  # a schedule of time: a value in the place of its epoch would be taken for one
            )
        if self.interval not in ("epoch", "step"):
            raise ConfigurationError(
                f"the interval of a scheduler is 'epoch' or 'step', got {self.interval!r}"
            )
        if isinstance(self.scheduler, ReduceLROnPlateau) and self.monitor is None:
            raise ConfigurationError(
                "ReduceLROnPlateau needs a value to watch",
                do="return {'optimizer': ..., 'lr_scheduler': {'scheduler': ..., 'monitor': "
                "name}}.",
            )

    def step(self, interval: Interval, count: int, trainer: TrainerState) -> None:
        """Step the scheduler, if ``count`` epochs or steps are a time for it.

        Raises:
            ConfigurationError: the value that it watches has not been logged.
        """
        if interval != self.interval or count % self.frequency:
            return
        if self.monitor is None:
            self.scheduler.step()
        elif self.monitor in trainer.callback_metrics:
            self.scheduler.step(trainer.callback_metrics[self.monitor])
        else:
            raise not_logged(trainer, self.monitor, "the scheduler")


def configured(
    returned: Any, module: nn.Module, *, automatic: bool = True
) -> tuple[list[Optimizer], list[Schedule]]:
    """Read what ``configure_optimizers`` returned.

    Args:
        returned: that.
        module: whose parameters the optimizers step.
        automatic: whether the trainer steps the optimizer; then there must be one.

    Raises:
        ConfigurationError: a form that we don't know, several optimizers that the trainer is to
            step, one that would step nothing of the module, or a scheduler of an optimizer that is
            none of them.
    """
    optimizers, schedulers = _split(returned)
    kinds = ", ".join(type(item).__name__ for item in optimizers) or "nothing"
    if not optimizers or not all(isinstance(optimizer, Optimizer) for optimizer in optimizers):
        raise ConfigurationError(f"configure_optimizers returned {kinds} for optimizers\n{_FORMS}")
    if automatic and len(optimizers) > 1:
        raise ConfigurationError(
            f"configure_optimizers returned {kinds}: several optimizers, and nothing says which "
            "one steps when",
            do="set self.automatic_optimization = False in __init__; in training_step call "
            "zero_grad() and "
            "step() of each of self.optimizers(), and self.manual_backward(loss).",
        )
    mine = {id(parameter) for parameter in module.parameters()}
    for optimizer in optimizers:
        _check(optimizer, mine)
    schedules = [_schedule(scheduler) for scheduler in schedulers]
    for schedule in schedules:
        _check_driven(schedule.scheduler, optimizers)
    return optimizers, schedules


def _check_driven(scheduler: Any, optimizers: list[Optimizer]) -> None:
    """Refuse a scheduler that changes the rates of an optimizer which nobody steps."""
    driven = getattr(scheduler, "optimizer", None)
    if not isinstance(driven, Optimizer) or any(driven is optimizer for optimizer in optimizers):
        return
    kinds = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
    raise ConfigurationError(
        f"the {type(scheduler).__name__} changes the rates of the {type(driven).__name__} that "
        "it was made for, and "
        f"configure_optimizers returned another optimizer for training: {kinds}, whose rates "
        "would stay",
        likely="the scheduler and what is returned were made in two calls.",
        do="make the optimizer once, the scheduler for it, and return both.",
    )


def _check(optimizer: Optimizer, mine: set[int]) -> None:
    name = type(optimizer).__name__
    if not any(
        id(parameter) in mine for group in optimizer.param_groups for parameter in group["params"]
    ):
        raise ConfigurationError(
            f"the {name} steps no parameter of the module: nothing would be learned",
            likely="it was made for another model, or before the module's parameters were "
            "replaced.",
            do="make it of self.parameters(), in configure_optimizers.",
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ConfigurationError(
            f"{name} computes the loss several times in a step, and the trainer does it once",
            do="use distmetrics.Runner, where a loop of your own calls optimizer.step(closure).",
        )


def _split(returned: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(returned, Mapping):
        if "optimizer" not in returned:
            raise ConfigurationError(
                f"configure_optimizers returned a dict without 'optimizer'\n{_FORMS}"
            )
        unknown = returned.keys() - {"optimizer", "lr_scheduler", "monitor"}
        if unknown:
            raise ConfigurationError(
                f"configure_optimizers returned a dict with {sorted(unknown)}\n{_FORMS}"
            )
        scheduler, monitor = returned.get("lr_scheduler"), returned.get("monitor")
        if scheduler is not None and monitor is not None and not isinstance(scheduler, Mapping):
            scheduler = {"scheduler": scheduler, "monitor": monitor}
        return [returned["optimizer"]], [] if scheduler is None else [scheduler]
    if (
        isinstance(returned, list | tuple)
        and returned
        and all(isinstance(item, Mapping) for item in returned)
    ):
        parts = [_split(item) for item in returned]
        return [item for part, _ in parts for item in part], [
            item for _, part in parts for item in part
        ]
    if (
        isinstance(returned, tuple)
        and len(returned) == 2
        and not isinstance(returned[1], Optimizer)
    ):
        return _listed(returned[0]), _listed(returned[1])
    return _listed(returned), []


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _schedule(scheduler: Any) -> Schedule:
    if not isinstance(scheduler, Mapping):
        return Schedule(scheduler)
    unknown = set(scheduler) - {"scheduler", "interval", "frequency", "monitor", "name"}
    if "scheduler" not in scheduler or unknown:
        raise ConfigurationError(
            "a scheduler's dict has the keys scheduler, interval, frequency, monitor and name, "
            f"got {sorted(scheduler)}"
        )
    return Schedule(**scheduler)
