"""The options of ``self.log``, and what is refused of them."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.arguments import FLAG
from distmetrics.arguments import check as check_arguments
from distmetrics.errors import ConfigurationError, InputError, InputTypeError
from distmetrics.train.sums import REDUCE_FX, Scope

_RESERVED = ("epoch", "step")
_TAKES = {name: FLAG.or_none() for name in ("on_step", "on_epoch", "sync_dist")} | dict.fromkeys(
    ("rank_zero_only", "prog_bar", "logger"), FLAG
)
_FUNCTIONS: dict[Any, str] = {
    torch.mean: "mean",
    torch.sum: "sum",
    torch.max: "max",
    torch.min: "min",
}


class Options(NamedTuple):
    """The options of ``self.log``."""

    on_step: bool | None = None
    on_epoch: bool | None = None
    sync_dist: bool | None = None
    rank_zero_only: bool = False
    batch_size: float | None = None
    reduce_fx: Any = "mean"
    prog_bar: bool = False
    logger: bool = True

    @property
    def reduction(self) -> Any:
        """The name of ``reduce_fx``, also where it is given as torch.mean or its like, as older
        code does.
        """
        return (
            _FUNCTIONS.get(self.reduce_fx, self.reduce_fx)
            if callable(self.reduce_fx)
            else self.reduce_fx
        )

    @property
    def scope(self) -> Scope:
        """Whose values make the epoch's."""
        if self.rank_zero_only:
            return "rank 0"
        return "this rank" if self.sync_dist is False else "all ranks"


def check_name(name: Any) -> None:
    """Refuse what is no name, and the names of the trainer's own values."""
    if not isinstance(name, str) or not name:
        raise InputTypeError(f"a name to log under must be a string, got {name!r}")
    if name in _RESERVED:
        raise ConfigurationError(
            f"nothing can be logged as {name!r}: 'epoch' and 'step' are the trainer's own, for "
            "loggers and in names of "
            "checkpoints",
            do=f"log it under another name: 'my_{name}', say.",
        )


def check(name: Any, options: Options) -> None:
    """Refuse what contradicts itself, and names and values of another kind."""
    check_name(name)
    check_arguments(f"self.log({name!r})", options._asdict(), _TAKES)
    if options.reduction not in REDUCE_FX:
        known = ", ".join(REDUCE_FX)
        raise ConfigurationError(
            f"reduce_fx of {name!r} must be one of {known}, got {options.reduce_fx!r}"
        )
    if options.batch_size is not None:
        as_size(name, options.batch_size)
    if options.sync_dist and options.rank_zero_only:
        raise ConfigurationError(
            f"{name!r}: sync_dist=True is all ranks' value, rank_zero_only=True rank 0's own"
        )


def as_size(name: Any, size: Any) -> float:
    """``batch_size`` as a number of Python; one of NumPy or torch is taken too, anything else is
    refused.
    """
    plain: Any = size.item() if isinstance(size, Tensor) and size.numel() == 1 else size
    real = isinstance(plain, Real) and not isinstance(plain, bool)  # NumPy's numbers are no ints
    number = float(plain) if real else math.nan
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"batch_size of {name!r} must be a number from 0 on, got {size!r}")
    return number


def check_metric(name: str, options: Options) -> None:
    """Refuse what a metric object can't do: its value exists once an epoch, over all ranks."""
    if options.on_step or options.on_epoch is False:
        raise ConfigurationError(
            f"{name!r} is a metric object, which has its value at the end of the epoch",
            do="for a value of each step, log what metric(...) returns.",
        )
    if options.sync_dist is False or options.rank_zero_only:
        raise ConfigurationError(
            f"{name!r} is a metric object, which is always computed over all ranks",
            do="drop sync_dist=False and rank_zero_only=True.",
        )
