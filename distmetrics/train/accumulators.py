"""The running values of this rank: under which name, combined how, and this rank's part of each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from distmetrics.comm.base import call_site
from distmetrics.errors import ConfigurationError, Site
from distmetrics.train.log_options import Scope

_ADDITIVE = ("mean", "sum")


class Key(NamedTuple):
    """What a value is kept under: the user's name, and its loader where there are several."""

    name: str
    loader: int = -1

    @property
    def label(self) -> str:
        """The name that the user reads."""
        return self.name if self.loader < 0 else f"{self.name}/dataloader_idx_{self.loader}"

    def of(self, moment: str) -> Key:
        """Return the key of the value of each step, or of the epoch, where there are both."""
        return Key(f"{self.name}_{moment}", self.loader)


class Kind(NamedTuple):
    """How a name is logged: what all ranks that log it must agree on.

    Attributes:
        reduce_fx: how values are combined.
        scope: whose values count.
        metric: the attribute of the module that holds the metric object; empty for a value.
        bare: True where a metric's several values go by their own names.
        forked: True where there is a value of each step too: this one is also ``name_epoch``.
    """

    reduce_fx: str = "mean"
    scope: Scope = "all ranks"
    metric: str = ""
    bare: bool = False
    forked: bool = False

    def __str__(self) -> str:
        if self.metric:
            return f"the metric self.{self.metric}"
        return f"a {self.reduce_fx} over {self.scope}"


@dataclass
class Accumulator:
    """One rank's part of a value.

    Values of an accelerator are added up there, so that no step waits for a copy; those of the CPU
    as numbers of Python, which are of float64 too and cost a tenth of an operation on a tensor.

    Attributes:
        kind: how the name is logged.
        site: the user's line that logged it first.
        total: Σ weight·value, Σ value or an extreme; None where nothing had weight.
        weight: Σ weight.
        steps: the number of steps that it was logged in.
    """

    kind: Kind
    site: Site | None = None
    total: Tensor | float | None = None
    weight: float = 0.0
    steps: int = 0

    def add(self, value: Tensor | float, weight: float) -> None:
        """Count a value; nothing of a tensor is kept."""
        if weight == 0:  # a batch without samples has no mean, and its NaN must not count
            return
        scale = weight if self.kind.reduce_fx == "mean" else 1.0
        if isinstance(value, float):
            self.merge(value * scale, weight)
            return
        if isinstance(self.total, Tensor):
            self.total = self.total.to(value.device)
            if self.kind.reduce_fx in _ADDITIVE:
                self.weight += weight
                self.total.add_(value, alpha=scale)  # one operation: a step may log hundreds
                return
        self.merge(value.to(torch.float64, copy=True).mul_(scale), weight)

    def merge(self, part: Tensor | float | None, weight: float) -> None:
        """Count another part, weighted already; NaN wins over any extreme."""
        self.weight += weight
        if self.total is None or part is None:
            self.total = part if self.total is None else self.total
        elif self.kind.reduce_fx in _ADDITIVE:
            self.total = self.total + part
        else:
            pick = torch.maximum if self.kind.reduce_fx == "max" else torch.minimum
            parts = [torch.as_tensor(each, dtype=torch.float64) for each in (self.total, part)]
            extreme = pick(*parts)
            self.total = extreme.item() if extreme.is_cpu else extreme

    @property
    def value(self) -> Tensor | float:
        """The value; without samples there is no number."""
        if self.total is None:
            return math.nan
        return self.total / self.weight if self.kind.reduce_fx == "mean" else self.total


class Accumulators(dict[Key, Accumulator]):
    """One rank's part of each value."""

    def of(self, key: Key, kind: Kind) -> Accumulator:
        """Return what adds up the values of ``key``, from now on if there is none.

        Raises:
            ConfigurationError: the name was logged in another way before.
        """
        if key not in self:
            self[key] = Accumulator(kind, call_site())
        known = self[key].kind
        if known != kind:
            raise ConfigurationError(
                f"{key.label!r} is logged in two ways: as {known}, and as {kind}",
                do="log it in one way, or under two names.",
            )
        return self[key]

    def settled(self) -> dict[Key, Accumulator]:
        """Return copies whose totals are numbers of Python, to be sent or saved."""
        return {
            key: replace(each, total=None if each.total is None else float(each.total))
            for key, each in self.items()
        }
