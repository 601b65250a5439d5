"""What ``configure_optimizers`` may return, and when learning rates change."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from distmetrics.arguments import POSITIVE, check, describe, one_of
from distmetrics.errors import ConfigurationError
from distmetrics.run.values import LoggedValues
from distmetrics.strategies.tensors import check_steps_some

Interval = Literal["epoch", "step"]
_FORMS = (
    "return an optimizer, ([optimizer], [scheduler]), or {'optimizer': ..., 'lr_scheduler': ...}."
)


_TAKES = {
    "frequency": POSITIVE,
    "interval": one_of("epoch", "step"),
}


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
        step = getattr(self.scheduler, "step", None)
        if not callable(step) or not hasattr(self.scheduler, "state_dict"):
            got = describe(self.scheduler)
            raise ConfigurationError(
                f"a scheduler has step() and state_dict(), got {got}", do=_FORMS
            )
        check("a scheduler", vars(self), _TAKES)
        if "metrics" not in inspect.signature(step).parameters:
            # A schedule of time would take the watched value for its epoch.
            self.monitor = None
        if isinstance(self.scheduler, ReduceLROnPlateau) and self.monitor is None:
            raise ConfigurationError(
                "ReduceLROnPlateau needs a value to watch",
                do="return {'optimizer': ..., 'lr_scheduler': {'scheduler': ..., 'monitor': "
                "name}}.",
            )

    def step(self, interval: Interval, count: int, values: LoggedValues) -> None:
        """Step the scheduler, if ``count`` epochs or steps are a time for it.

        Raises:
            ConfigurationError: the value that it watches has not been logged.
        """
        if interval != self.interval or count % self.frequency:
            return
        if self.monitor is None:
            self.scheduler.step()
        elif self.monitor in values.numbers:
            self.scheduler.step(values.callback_metrics[self.monitor])
        else:
            raise values.not_logged(self.monitor, "the scheduler")


def configured(
    returned: Any,
    module: nn.Module,
    *,
    automatic: bool = True,
) -> tuple[list[Optimizer], list[Schedule]]:
    """Return the optimizers and schedules in what ``configure_optimizers`` returned.

    Args:
        returned: what it returned.
        module: whose parameters the optimizers step.
        automatic: True if the trainer steps the optimizer; then there must be one.

    Raises:
        ConfigurationError: an unknown form, several optimizers that the trainer is to step, one
            that would step nothing of the module, or a scheduler of none of the optimizers.
    """
    optimizers, schedulers = _split(returned)
    kinds = ", ".join(type(item).__name__ for item in optimizers) or "nothing"
    if not optimizers or not all(isinstance(optimizer, Optimizer) for optimizer in optimizers):
        raise ConfigurationError(f"configure_optimizers returned {kinds} for optimizers", do=_FORMS)
    if automatic and len(optimizers) > 1:
        raise ConfigurationError(
            f"configure_optimizers returned {kinds}: several optimizers, and nothing says which "
            "one steps when",
            do="set self.automatic_optimization = False in __init__; in training_step call "
            "zero_grad() and step() of each of self.optimizers(), and self.manual_backward(loss).",
        )
    for optimizer in optimizers:
        _check_optimizer(optimizer, module)
    schedules = [_schedule(scheduler) for scheduler in schedulers]
    for schedule in schedules:
        _check_scheduler(schedule.scheduler, optimizers)
    return optimizers, schedules


def _check_scheduler(scheduler: Any, optimizers: list[Optimizer]) -> None:
    """Refuse a scheduler that changes the rates of an optimizer which nobody steps."""
    target = getattr(scheduler, "optimizer", None)
    if not isinstance(target, Optimizer) or any(target is optimizer for optimizer in optimizers):
        return
    kinds = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
    raise ConfigurationError(
        f"the {type(scheduler).__name__} changes the rates of the {type(target).__name__} that "
        "it was made for, and configure_optimizers returned another optimizer for training: "
        f"{kinds}, whose rates would stay",
        likely="the scheduler and what is returned were made in two calls.",
        do="make the optimizer once, the scheduler for it, and return both.",
    )


def _check_optimizer(optimizer: Optimizer, module: nn.Module) -> None:
    advice = "make it of self.parameters(), in configure_optimizers."
    check_steps_some(optimizer, module, advice)
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        name = type(optimizer).__name__
        raise ConfigurationError(
            f"{name} computes the loss several times in a step, and the trainer does it once",
            do="use distmetrics.Runner, where a loop of your own calls optimizer.step(closure).",
        )


def _split(returned: Any) -> tuple[list[Any], list[Any]]:
    """Return the optimizers and the schedulers of one of the forms."""
    items = _as_list(returned)
    if items and all(isinstance(item, Mapping) for item in items):
        pairs = [_split_dict(item) for item in items]
        schedulers = [scheduler for _, scheduler in pairs if scheduler is not None]
        return [optimizer for optimizer, _ in pairs], schedulers
    is_pair = isinstance(returned, tuple) and len(items) == 2
    if is_pair and not isinstance(items[1], Optimizer):
        return _as_list(items[0]), _as_list(items[1])
    return items, []


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _split_dict(returned: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the optimizer and the scheduler or None."""
    unknown = returned.keys() - {"optimizer", "lr_scheduler", "monitor"}
    if unknown or "optimizer" not in returned:
        wrong = "without 'optimizer'" if "optimizer" not in returned else f"with {sorted(unknown)}"
        raise ConfigurationError(f"configure_optimizers returned a dict {wrong}", do=_FORMS)
    scheduler, monitor = returned.get("lr_scheduler"), returned.get("monitor")
    if scheduler is not None and monitor is not None and not isinstance(scheduler, Mapping):
        scheduler = {"scheduler": scheduler, "monitor": monitor}
    return returned["optimizer"], scheduler


def _schedule(scheduler: Any) -> Schedule:
    if not isinstance(scheduler, Mapping):
        return Schedule(scheduler)
    known = {field.name for field in fields(Schedule)}
    if "scheduler" not in scheduler or set(scheduler) - known:
        raise ConfigurationError(
            "a scheduler's dict has the keys scheduler, interval, frequency, monitor and name, "
            f"got {sorted(scheduler)}"
        )
    return Schedule(**scheduler)
