"""The arguments of ``self.log``: what they may be, and what is refused of them."""

import math
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from distmetrics.arguments import FLAG, Takes
from distmetrics.arguments import check as check_arguments
from distmetrics.errors import ConfigurationError, InputError, InputTypeError
from distmetrics.log.window import number_of
from distmetrics.tree import flatten

ReduceFx = Literal["mean", "sum", "max", "min"]
Scope = Literal["all ranks", "this rank", "rank 0"]

_RESERVED_NAMES = ("epoch", "step")
_CPU = torch.device("cpu")


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
    def scope(self) -> Scope:
        """The ranks whose values make the epoch's value."""
        if self.rank_zero_only:
            return "rank 0"
        return "this rank" if self.sync_dist is False else "all ranks"


_TAKES = {
    **{name: FLAG.or_none() for name in ("on_step", "on_epoch", "sync_dist")},
    **dict.fromkeys(("rank_zero_only", "prog_bar", "logger"), FLAG),
    "reduce_fx": Takes(
        lambda value: value in get_args(ReduceFx),
        f"one of {', '.join(get_args(ReduceFx))}",
        do="log it with one of these; any other statistic belongs in a metric object.",
    ),
}


def check_name(name: Any) -> None:
    """Refuse what is no name, and the names of the trainer's own values."""
    if not isinstance(name, str) or not name:
        raise InputTypeError(f"a name to log under must be a string, got {name!r}")
    if name in _RESERVED_NAMES:
        raise ConfigurationError(
            f"nothing can be logged as {name!r}: 'epoch' and 'step' are the trainer's own, for "
            "loggers and in names of checkpoints",
            do=f"log it under another name: 'my_{name}', say.",
        )


def check_options(name: Any, options: Options, *, is_metric: bool = False) -> None:
    """Refuse a name or options of the wrong kind, and options that contradict each other.

    A metric object's value exists once an epoch, over all ranks.
    """
    check_name(name)
    check_arguments(f"self.log({name!r})", options._asdict(), _TAKES)
    if options.batch_size is not None:
        check_batch_size(name, options.batch_size)
    if options.sync_dist and options.rank_zero_only:
        raise ConfigurationError(
            f"{name!r}: sync_dist=True is all ranks' value, rank_zero_only=True rank 0's own"
        )
    if is_metric and (options.on_step or options.on_epoch is False):
        raise ConfigurationError(
            f"{name!r} is a metric object, which has its value at the end of the epoch",
            do="for a value of each step, log what metric(...) returns.",
        )
    if is_metric and options.scope != "all ranks":
        raise ConfigurationError(
            f"{name!r} is a metric object, which is always computed over all ranks",
            do="drop sync_dist=False and rank_zero_only=True.",
        )


def moments(name: str, options: Options, *, in_step: bool, training: bool) -> tuple[bool, bool]:
    """Return on_step and on_epoch; only a training step's value is by default not the epoch's.

    Raises:
        ConfigurationError: there is no such moment.
    """
    by_step = in_step and training
    on_step = by_step if options.on_step is None else options.on_step
    on_epoch = not by_step if options.on_epoch is None else options.on_epoch
    if on_step and not in_step:
        raise ConfigurationError(f"{name!r} is logged on_step, and no step is under way here")
    if not (on_step or on_epoch):
        raise ConfigurationError(
            f"{name!r} is logged neither on_step nor on_epoch: it would be lost"
        )
    return on_step, on_epoch


def check_batch_size(name: Any, size: Any) -> float:
    """Return ``batch_size``, which may be a number of NumPy or torch, as one of Python."""
    is_number = isinstance(size, Tensor) and size.numel() == 1
    plain: Any = size.item() if is_number else size
    is_real = isinstance(plain, Real) and not isinstance(plain, bool)  # NumPy's are no ints
    number = float(plain) if is_real else math.nan
    if not 0 <= number < math.inf:
        raise InputError(f"batch_size of {name!r} must be a number from 0 on, got {size!r}")
    return number


def batch_size_of(batch: Any, name: str) -> int:
    """Return the number of samples in a batch: the first dimension that all its tensors share.

    Raises:
        InputError: there is no tensor, or their first dimensions differ.

    >>> batch_size_of({"image": torch.zeros(8, 3, 32, 32), "label": torch.zeros(8)}, "loss")
    8
    """
    leaves, spec = flatten(batch)
    sizes = {
        path: leaf.shape[0]
        for path, leaf in zip(spec.paths, leaves, strict=True)
        if isinstance(leaf, Tensor) and leaf.ndim > 0
    }
    if len(set(sizes.values())) == 1:
        return next(iter(sizes.values()))
    seen = ", ".join(f"batch{path} has {size}" for path, size in sizes.items())
    raise InputError(
        f"can't tell how many samples are behind {name!r}, by which its mean is weighted: "
        f"{seen or 'it holds no tensor with a dimension'}",
        do=f"self.log({name!r}, value, batch_size=...).",
    )


def as_number(name: Any, value: Any) -> Tensor | float:
    """Return a copy of the value of ``name``: a number, or on an accelerator a tensor there.

    To read a number of the CPU waits for nothing, and takes a fourth of the time of a clone.

    Raises:
        InputError: it is no real number, or several.

    >>> as_number("loss", torch.tensor([3], dtype=torch.int64))
    3.0
    """
    if isinstance(value, Tensor) and value.device == _CPU and value.numel() == 1:
        value = value.item()
    if type(value) is float:
        return value
    number = number_of(name, value)
    return number.clone() if isinstance(number, Tensor) else number
