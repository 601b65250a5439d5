"""The values that were logged, by name: what callbacks act on, the same on every rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from distmetrics.errors import ConfigurationError, InputTypeError
from distmetrics.log.window import CPU, number_of


def check_name(name: Any) -> None:
    """Refuse what is not a name, and the names of the trainer's own values."""
    if not isinstance(name, str) or not name:
        raise InputTypeError(f"a name to log under must be a string, got {name!r}")
    if name in ("epoch", "step"):
        raise ConfigurationError(
            f"nothing can be logged as {name!r}, which is the trainer's own",
            do=f"log it under another name: 'my_{name}', say.",
        )


def as_number(name: Any, value: Any) -> Tensor | float:
    """Return a copy of the value of ``name``: a number, or on an accelerator a tensor there.

    To read a number of the CPU waits for nothing, and takes a fourth of the time of a clone.

    Raises:
        InputError: it is no real number, or several.

    >>> as_number("loss", torch.tensor([3], dtype=torch.int64))
    3.0
    """
    if isinstance(value, Tensor) and value.device == CPU and value.numel() == 1:
        value = value.item()
    if type(value) is float:
        return value
    number = number_of(name, value)
    return number.clone() if isinstance(number, Tensor) else number


@dataclass
class LoggedValues:
    """The latest value of everything that was logged.

    Attributes:
        numbers: the values by name; tensors on the device, where a step has logged them there.
        local_metrics: the names whose values are this rank's own.
        fresh_metrics: the names logged for the latest epoch.
        validation_metrics: the names logged in the latest validation.
        validated: True if the epoch's values of validation are there, or there will be none.
        within_epochs: True if an epoch of the fit under way may have several validations.
    """

    numbers: dict[str, Tensor | float] = field(default_factory=dict)
    local_metrics: set[str] = field(default_factory=set)
    fresh_metrics: set[str] = field(default_factory=set)
    validation_metrics: set[str] = field(default_factory=set)
    validated: bool = False
    within_epochs: bool = False

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The values by name, in float64, on the CPU."""
        return {
            name: torch.as_tensor(number, dtype=torch.float64, device="cpu")
            for name, number in self.numbers.items()
        }

    def note(self, values: Mapping[str, Tensor | float], local: set[str]) -> None:
        """Take values, of which the ``local`` ones are this rank's own."""
        self.numbers.update(values)
        self.local_metrics -= values.keys()
        self.local_metrics |= local

    def note_epoch(self, values: Mapping[str, Tensor | float], local: set[str]) -> None:
        """Take values of the latest epoch."""
        self.note(values, local)
        self.fresh_metrics |= values.keys()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the values, of plain types."""
        names = [self.local_metrics, self.fresh_metrics, self.validation_metrics]
        values = {name: float(number) for name, number in self.numbers.items()}
        return {"values": values, "names": [sorted(each) for each in names]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned."""
        self.numbers = dict(state["values"])
        names = map(set, state["names"])
        self.local_metrics, self.fresh_metrics, self.validation_metrics = names

    def acts_after_validation(self, name: str | None) -> bool:
        """True if who watches ``name`` acts after each of an epoch's several validations."""
        return self.within_epochs and name in self.validation_metrics

    def monitored(self, name: str, who: str, *, latest: bool = False) -> float | None:
        """Return the epoch's value of ``name``, the same on every rank.

        Args:
            name: a logged value.
            who: the callback that watches it, for errors.
            latest: also take a value of an earlier epoch or of a step.

        Returns:
            None where there is none yet, or the epoch has had no validation.

        Raises:
            ConfigurationError: nothing is logged under that name, or only each rank's own value.
        """
        is_there = name in self.fresh_metrics or (latest and name in self.numbers)
        # With check_val_every_n_epoch it may come in a later epoch.
        if name in self.local_metrics or not (is_there or latest or not self.validated):
            raise self.not_logged(name, who)
        return float(self.numbers[name]) if is_there else None

    def not_logged(self, name: str, who: str) -> ConfigurationError:
        """Return the error of a watched value that is not there for all ranks."""
        why = f"logged values are: {', '.join(sorted(self.numbers)) or 'none'}"
        if name in self.local_metrics:
            why = "every rank has its own value of it, or rank 0 alone has one"
        elif name in self.numbers:
            why = "there is no value of it for this epoch, but of a step or an earlier epoch"
        return ConfigurationError(
            f"{who} watches {name!r}, and {why}",
            do="log it with on_epoch=True in every epoch, and without sync_dist=False.",
        )
