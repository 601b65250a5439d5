"""The running values of a name: which name, how it is combined, and one rank's part of it.

Σ weight·value and Σ weight are kept in float64.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from distmetrics.errors import Site

ReduceFx = Literal["mean", "sum", "max", "min"]
REDUCE_FX: tuple[str, ...] = get_args(ReduceFx)
_SUMS = ("mean", "sum")
Scope = Literal["all ranks", "this rank", "rank 0"]


class Key(NamedTuple):
    """What a value is kept under: the user's name, and the loader that it is about where there are
    several.
    """

    name: str
    loader: int = -1

    @property
    def label(self) -> str:
        """The name that the user reads."""
        return self.name if self.loader < 0 else f"{self.name}/dataloader_idx_{self.loader}"


class Kind(NamedTuple):
    """How a name was logged: what all ranks that log it must agree on.

    Attributes:
        reduce_fx: how values are combined.
        scope: whose values count.
        metric: where the module holds the metric object; empty for a value.
        bare: whether a metric's several values go by their own names.
        forked: whether there is a value of each step too, so that this one is also known as
            ``name_epoch``.
    """

    reduce_fx: str = "mean"
    scope: Scope = "all ranks"
    metric: str = ""
    bare: bool = False
    forked: bool = False

    def __str__(self) -> str:
        return (
            f"the metric self.{self.metric}"
            if self.metric
            else f"a {self.reduce_fx} over {self.scope}"
        )


class Record(NamedTuple):
    """One rank's part of a value, as it travels."""

    kind: Kind
    total: float
    weight: float
    steps: int


class Sum:
    """A running Σ weight·value, Σ weight, or an extreme.

    Values of an accelerator are added up there, so that no step waits for a copy; those of the CPU
    as numbers of Python, which are of float64 too and cost a tenth of an operation on a tensor.
    """

    def __init__(self, kind: Kind, site: Site | None = None) -> None:
        self.kind = kind
        self.site = site  # where it was logged first
        self.total: Tensor | float | None = None
        self.weight = 0.0
        self.steps = 0  # that it was logged in

    def add(self, value: Tensor | float, weight: float) -> None:
        """Count a number, or a 0-dim value of any real dtype; nothing of it is kept."""
        if weight == 0:  # a batch without samples has no mean, and its NaN must not count
            return
        self.weight += weight
        scale = weight if self.kind.reduce_fx == "mean" else 1.0
        if isinstance(value, float):
            self._combine(value * scale)
        elif (
            isinstance(self.total, Tensor)
            and self.kind.reduce_fx in _SUMS
            and self.total.device == value.device
        ):
            self.total.add_(value, alpha=scale)  # one operation: a step may log hundreds of values
        else:
            self._combine(value.to(torch.float64, copy=True).mul_(scale))

    def merge(self, total: Tensor | None, weight: float) -> None:
        """Count another part, weighted already."""
        self.weight += weight
        if total is not None:
            self._combine(total.item() if total.is_cpu else total.clone())

    def record(self) -> Record:
        """Return this rank's part, as it travels."""
        return Record(
            self.kind,
            float("nan") if self.total is None else float(self.total),
            self.weight,
            self.steps,
        )

    def saved(self) -> Tensor | None:
        """Return the total on the CPU, a copy."""
        return (
            None
            if self.total is None
            else torch.as_tensor(self.total, dtype=torch.float64).to("cpu", copy=True)
        )

    def _combine(self, part: Tensor | float) -> None:
        if self.total is None:
            self.total = part
        elif (
            isinstance(part, float)
            and isinstance(self.total, float)
            and self.kind.reduce_fx in _SUMS
        ):
            self.total += part
        else:
            device = part.device if isinstance(part, Tensor) else "cpu"
            both = [
                torch.as_tensor(each, dtype=torch.float64, device=device)
                for each in (self.total, part)
            ]
            total = combine(self.kind.reduce_fx, *both)
            self.total = total.item() if total.is_cpu else total


def combine(reduce_fx: str, a: Tensor, b: Tensor) -> Tensor:
    """Return what two parts make together."""
    if reduce_fx in _SUMS:
        return a + b
    return (
        torch.maximum(a, b) if reduce_fx == "max" else torch.minimum(a, b)
    )  # both let NaN through
