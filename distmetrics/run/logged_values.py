"""The values that were logged, by name: what callbacks act on, the same on every rank."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from distmetrics.errors import ConfigurationError

_NAMES = ("local_metrics", "fresh_metrics", "validation_metrics")


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
        why_unvalidated: why the fit under way has no validation; "" where it has one.
    """

    numbers: dict[str, Tensor | float] = field(default_factory=dict)
    local_metrics: set[str] = field(default_factory=set)
    fresh_metrics: set[str] = field(default_factory=set)
    validation_metrics: set[str] = field(default_factory=set)
    validated: bool = False
    within_epochs: bool = False
    why_unvalidated: str = ""

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The values by name, in float64."""
        return {
            name: torch.as_tensor(
                number, dtype=torch.float64, device=getattr(number, "device", "cpu")
            )
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
        names = {name: sorted(getattr(self, name)) for name in _NAMES}
        values = {name: float(number) for name, number in self.numbers.items()}
        return {"values": values, "names": names}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned."""
        self.numbers = dict(state["values"])
        for name in _NAMES:
            setattr(self, name, set(state["names"][name]))

    def acts_after_validation(self, name: str | None) -> bool:
        """True if who watches ``name`` acts after each of an epoch's several validations."""
        return self.within_epochs and name in self.validation_metrics

    def monitored(self, name: str, who: str, *, latest: bool = False) -> float | None:
        """Return the epoch's value of ``name``, the same on every rank.

        Args:
            name: a logged value.
            who: the callback that watches it, for errors.
            latest: also take a value of an earlier epoch or of a step.

        Returns: None where there is none yet, or the epoch has had no validation.

        Raises:
            ConfigurationError: nothing is logged under that name, or only each rank's own value.
        """
        if name in self.local_metrics:
            raise ConfigurationError(
                f"{who} watches {name!r}, and every rank has its own value of it, or rank 0 alone "
                "has one",
                do="log it with on_epoch=True and without sync_dist=False.",
            )
        if name in self.fresh_metrics or (latest and name in self.numbers):
            return float(self.numbers[name])
        if latest or not self.validated:  # check_val_every_n_epoch: it may come in a later epoch
            return None
        raise self.not_logged(name, who)

    def not_logged(self, name: str, who: str) -> ConfigurationError:
        """Return the error of a watched value that is not there, with the cause if it is known."""
        if name in self.numbers:
            return ConfigurationError(
                f"{who} watches {name!r}, and there is no value of it for this epoch: the one "
                "there is of a single step or of an earlier epoch",
                likely="self.log in training_step, which keeps each step's value alone unless "
                "on_epoch=True.",
                do="log it with on_epoch=True, in every epoch; rank_zero_only=True may stay.",
            )
        known = sorted(self.numbers)
        by_loader = [label for label in known if label.startswith(f"{name}/dataloader_idx_")]
        near = difflib.get_close_matches(name, known, n=1)
        likely, do = "", "log it in training_step with on_epoch=True, or in validation_step."
        if by_loader:
            count = len(by_loader)
            likely = f"it is logged for {count} validation loaders, and each has its own value."
            do = f"watch one of them: {by_loader[0]!r}, say."
        elif self.why_unvalidated:
            why = self.why_unvalidated
            likely = f"it is a value of validation, and this fit has none: {why}."
            do = "validate in this fit, or watch what training_step logs with on_epoch=True."
        elif near:
            likely = f"{near[0]!r} is meant."
        what = f"{who} watches {name!r}, and logged values are: {', '.join(known) or 'none'}"
        return ConfigurationError(what, likely=likely, do=do)
