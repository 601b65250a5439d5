"""What ``configure_optimizers`` may return, and when learning rates change."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import nn
from torch.optim import Optimizer

from distmetrics.arguments import describe, one_of
from distmetrics.errors import ConfigurationError
from distmetrics.run.config import Positive, check_fields
from distmetrics.run.values import LoggedValues
from distmetrics.strategies.tensors import check_steps_some

Interval = Literal["epoch", "step"]
_FORMS = (
    "return an optimizer, ([optimizer], [scheduler]), or {'optimizer': ..., 'lr_scheduler': ...}."
)


@dataclass
class Schedule:
    """A learning-rate scheduler, and when it steps: the keys of its dict.

    Attributes:
        scheduler: torch's.
        interval: after each "epoch" or each optimizer "step".
        frequency: every how many of those.
        monitor: the logged value that ``ReduceLROnPlateau`` wants.
        name: what ``LearningRateMonitor`` calls it.
    """

    scheduler: Any
    interval: Annotated[Interval, one_of("epoch", "step")] = "epoch"
    frequency: Positive = 1
    monitor: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, "a scheduler")
        watched = inspect.signature(self.scheduler.step).parameters.get("metrics")
        if watched is None:
            # A schedule of time would take the watched value for its epoch.
            self.monitor = None
        elif self.monitor is None and watched.default is watched.empty:
            raise ConfigurationError(
                f"{type(self.scheduler).__name__} needs a value to watch",
                do="return {'optimizer': ..., 'lr_scheduler': {'scheduler': ..., 'monitor': "
                "name}}.",
            )

    def step(self, interval: Interval, count: int, values: LoggedValues) -> None:
        """Step the scheduler, if ``count`` epochs or steps are a time for it."""
        if interval != self.interval or count % self.frequency:
            return
        if self.monitor is None:
            self.scheduler.step()
        elif self.monitor in values.numbers:
            self.scheduler.step(values.callback_metrics[self.monitor])
        else:
            raise values.not_logged(self.monitor, "the scheduler")


def configured(
    returned: Any, module: nn.Module, *, automatic: bool = True
) -> tuple[list[Optimizer], list[Schedule]]:
    """Return the optimizers and schedules in what ``configure_optimizers`` returned.

    With ``automatic`` optimization it is the trainer that steps, and there must be one optimizer.
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
        check_steps_some(
            optimizer, module, "make it of self.parameters(), in configure_optimizers."
        )
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise ConfigurationError(
                f"{type(optimizer).__name__} computes the loss several times in a step, and the "
                "trainer does it once",
                do="use distmetrics.Runner, where a loop of your own calls "
                "optimizer.step(closure).",
            )
    schedules = [
        Schedule(**each) if isinstance(each, Mapping) else Schedule(each) for each in schedulers
    ]
    for schedule in schedules:
        target = getattr(schedule.scheduler, "optimizer", None)
        is_other = all(target is not optimizer for optimizer in optimizers)
        if isinstance(target, Optimizer) and is_other:
            raise ConfigurationError(
                f"the {type(schedule.scheduler).__name__} changes the rates of another "
                f"{type(target).__name__} than those that configure_optimizers returned: {kinds}",
                do="make the optimizer once, the scheduler for it, and return both.",
            )
    return optimizers, schedules


def _split(returned: Any) -> tuple[list[Any], list[Any]]:
    """Return the optimizers and the schedulers of one of the forms."""
    items = _as_list(returned)
    if any(isinstance(item, Mapping) for item in items):
        pairs = [_of_dict(item) for item in items]
        schedulers = [scheduler for _, scheduler in pairs if scheduler is not None]
        return [optimizer for optimizer, _ in pairs], schedulers
    is_pair = isinstance(returned, tuple) and len(items) == 2
    if is_pair and not isinstance(items[1], Optimizer):
        return _as_list(items[0]), _as_list(items[1])
    return items, []


def _of_dict(returned: Any) -> tuple[Any, Any]:
    """Return the optimizer and the scheduler, or None; it may stand beside what it watches."""
    match returned:
        case {"optimizer": optimizer, **rest} if rest.keys() <= {"lr_scheduler", "monitor"}:
            scheduler = rest.get("lr_scheduler")
            if scheduler is not None and not isinstance(scheduler, Mapping):
                scheduler = {"scheduler": scheduler, "monitor": rest.get("monitor")}
            return optimizer, scheduler
    what = f"a dict with {[*returned]}" if isinstance(returned, Mapping) else describe(returned)
    raise ConfigurationError(f"configure_optimizers returned {what}", do=_FORMS)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
