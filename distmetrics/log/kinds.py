"""How values of one name are combined, over the steps of a rank and over ranks. Pure.

Every kind is brought down to numbers that are added up and numbers of which the largest counts, so
that whatever is logged needs one reduction of each sort. All are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from distmetrics.log import sketch

# Values and weights of several names, [n], to what is added up and where, [n, k] each, and to what
# is compared, [n, maxima].
_Parts = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
_Read = Callable[[str, Sequence[float], Sequence[float]], dict[str, float]]


@dataclass(frozen=True, eq=False)
class Kind:
    """One way to combine values.

    Attributes:
        name: what users call it.
        sums: how many numbers of it are added up.
        maxima: of how many the largest counts.
        parts: what of each value is added up, and to which of the sums; what is compared.
        read: the values that users get, by the names that they get, from sums and maxima.
        is_latest: whether a rank's latest value counts alone.
        plain: the kind whose values these are, where a name need not have been logged: then one
            more maximum says whether it was.
    """

    name: str
    sums: int
    maxima: int
    parts: _Parts
    read: _Read
    is_latest: bool = False
    plain: Kind | None = None

    def __str__(self) -> str:
        return str(self.plain or self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return SENT.__getitem__, (self.name,)  # a copy is the kind itself


def _added(values: Tensor, *columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return columns that are added up, and that each goes to the sum of its own."""
    count = len(columns)
    numbers = torch.stack(columns, dim=1) if columns else values.new_empty(len(values), 0)
    return numbers, torch.arange(count, device=values.device).expand(len(values), count)


def _mean_parts(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # The mean of no samples is NaN, and its weight is zero: it must not count.
    weighted = torch.where(weights == 0, 0.0, values * weights)
    return *_added(values, weighted, weights), values.new_empty(len(values), 0)


def _sum_parts(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return *_added(values, values), values.new_empty(len(values), 0)


def _max_parts(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return *_added(values), values.unsqueeze(1)


def _min_parts(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return *_added(values), -values.unsqueeze(1)


def _same_parts(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # x is the same everywhere if the largest x is the negative of the largest -x. NaN, which equals
    # nothing, is told apart.
    missing = values.isnan()
    known = values.masked_fill(missing, 0.0)
    flags = missing.to(values.dtype)
    return *_added(values), torch.stack([known, -known, flags, -flags], dim=1)


def _quantile_parts(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    places = sketch.buckets(values).unsqueeze(1)
    return torch.ones_like(places, dtype=values.dtype), places, values.unsqueeze(1)


def _read_mean(name: str, sums: Sequence[float], maxima: Sequence[float]) -> dict[str, float]:
    total, weight = sums
    return {name: total / weight if weight else math.nan}


def _read_same(name: str, sums: Sequence[float], maxima: Sequence[float]) -> dict[str, float]:
    return {name: math.nan if maxima[2] else maxima[0]}


def is_same(maxima: Sequence[float]) -> bool:
    """True if all ranks had the same value, from the maxima of the kind "same"."""
    largest, least, missing, present = maxima
    return largest == -least and missing == -present


def _read_quantiles(name: str, sums: Sequence[float], maxima: Sequence[float]) -> dict[str, float]:
    values = sketch.quantiles(sums, maxima[0])
    return {f"{name}_{label}": value for label, value in values.items()}


MEAN = Kind("mean", 2, 0, _mean_parts, _read_mean)
SUM = Kind("sum", 1, 0, _sum_parts, lambda name, sums, maxima: {name: sums[0]})
MAX = Kind("max", 0, 1, _max_parts, lambda name, sums, maxima: {name: maxima[0]})
MIN = Kind("min", 0, 1, _min_parts, lambda name, sums, maxima: {name: -maxima[0]})
SAME = Kind("same", 0, 4, _same_parts, _read_same, is_latest=True)
QUANTILE = Kind("quantile", sketch.SIZE, 1, _quantile_parts, _read_quantiles)
KINDS = {kind.name: kind for kind in (MEAN, SUM, MAX, MIN, SAME, QUANTILE)}
MAYBE = {
    kind: replace(kind, name=f"{name}?", maxima=kind.maxima + 1, plain=kind)
    for name, kind in KINDS.items()
}
SENT = KINDS | {kind.name: kind for kind in MAYBE.values()}  # what names may travel as
