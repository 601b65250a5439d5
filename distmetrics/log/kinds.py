"""How values of one name are combined, over the steps of a rank and over ranks. Pure.

Every kind is brought down to numbers that are added up and numbers of which the largest counts, so
that whatever is logged needs one reduction of each sort. All are float64. One sum is of squares
about the mean: where means become one, it is brought to that by ``distmetrics.log.moments``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from distmetrics.comm.communicator import fold
from distmetrics.log import sketch

# Values and weights of several names, [n], to what is added up and where, [n, k] each, and to what
# is compared, [n, maxima].
_Parts = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
_Read = Callable[[str, Sequence[float], Sequence[float]], dict[str, Any]]
_SENT = re.compile(r"([a-z]+)(?:\[([1-9][0-9]{0,9})\])?(\?)?")


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
        is_weighted: whether a weight counts.
        of_samples: whether a one-dimensional value is samples of one number, and no array.
        is_centred: whether the third of its sums is of squares about the mean of the first two.
        length: of the arrays whose elements are combined so, each by itself; 0 for a number.
        plain: the kind whose values these are, where a name need not have been logged: then one
            more maximum says whether it was.
    """

    name: str
    sums: int
    maxima: int
    parts: _Parts
    read: _Read
    is_latest: bool = False
    is_weighted: bool = False
    of_samples: bool = False
    is_centred: bool = False
    length: int = 0
    plain: Kind | None = None

    def __str__(self) -> str:
        name, _, shape = (self.plain or self).name.partition("[")
        return f"{name} of shape [{shape}" if shape else name

    def __reduce__(self) -> tuple[Any, ...]:
        return kind_of, (self.name,)  # a copy is the kind itself

    def array(self, length: int) -> Kind:
        """Return the kind of arrays whose elements are combined in this way."""
        return kind_of(f"{self.name}[{length}]")

    def maybe(self) -> Kind:
        """Return the kind of a name that need not have been logged."""
        return kind_of(f"{self.name}?")


def kind_of(text: str) -> Kind:
    """Return the kind that travels as a text, the same object each time; raise for what is none.

    >>> kind_of("sum[8]?").maxima, str(kind_of("sum[8]?"))
    (1, 'sum of shape [8]')
    """
    known = _KINDS_OF.get(text)
    if known is not None:
        return known
    match = _SENT.fullmatch(text)
    if match is None:
        raise ValueError(f"no kind {text!r}")
    name, length, mark = match.groups()
    kind = KINDS[name]
    if length is not None:
        kind = _array_of(kind, int(length), f"{name}[{length}]")
    if mark is not None:
        plain = kind_of(kind.name)
        kind = replace(plain, name=text, maxima=plain.maxima + 1, plain=plain)
    return _KINDS_OF.setdefault(text, kind)  # another thread may have made it


def _array_of(kind: Kind, length: int, name: str) -> Kind:
    if kind.of_samples:
        raise ValueError(f"no arrays of {kind}")

    def read(name: str, sums: Sequence[float], maxima: Sequence[float]) -> dict[str, Any]:
        values = []
        for at in range(length):
            own = sums[at * kind.sums : (at + 1) * kind.sums]
            largest = maxima[at * kind.maxima : (at + 1) * kind.maxima]
            values.append(kind.read(name, own, largest)[name])
        return {name: values}

    sizes = length * kind.sums, length * kind.maxima
    return replace(kind, name=name, sums=sizes[0], maxima=sizes[1], read=read, length=length)


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
    """True if all ranks had the same value, from the maxima of the kind "same".

    >>> is_same([1.0, -1.0, 0.0, 0.0, 2.0, -3.0, 0.0, 0.0])
    False
    """
    return all(a == -b for a, b in zip(maxima[::2], maxima[1::2], strict=True))


def _read_std(name: str, sums: Sequence[float], maxima: Sequence[float]) -> dict[str, float]:
    _, weight, squares = sums
    return {name: math.sqrt(squares / (weight - 1.0)) if weight > 1.0 else math.nan}


def _read_quantiles(name: str, sums: Sequence[float], maxima: Sequence[float]) -> dict[str, float]:
    values = sketch.quantiles(sums, maxima[0])
    return {f"{name}_{label}": value for label, value in values.items()}


MEAN = Kind("mean", 2, 0, _mean_parts, _read_mean, is_weighted=True)
SUM = Kind("sum", 1, 0, _sum_parts, lambda name, sums, maxima: {name: sums[0]})
MAX = Kind("max", 0, 1, _max_parts, lambda name, sums, maxima: {name: maxima[0]})
MIN = Kind("min", 0, 1, _min_parts, lambda name, sums, maxima: {name: -maxima[0]})
SAME = Kind("same", 0, 4, _same_parts, _read_same, is_latest=True)
# What is a mean's, and the squares about it.
STD = Kind("std", 3, 0, _mean_parts, _read_std, is_weighted=True, of_samples=True, is_centred=True)
QUANTILE = Kind("quantile", sketch.SIZE, 1, _quantile_parts, _read_quantiles, of_samples=True)
KINDS = {kind.name: kind for kind in (MEAN, SUM, MAX, MIN, SAME, STD, QUANTILE)}
_KINDS_OF = dict(KINDS)  # by what names travel as

_TOTAL, _WEIGHT, SQUARES = 0, 1, 2  # where they lie, from the place of the first


def summed(parts: Sequence[Tensor], places: Tensor) -> Tensor:
    """Add up the sums of several parts, in their order.

    Args:
        parts: float64, [n] each.
        places: where the totals lie of what has squares, [k].

    >>> one, two = [torch.tensor([x, 1.0, 0.0], dtype=torch.float64) for x in (1e9, 1e9 + 2)]
    >>> summed([one, two], torch.tensor([0]))[SQUARES]
    tensor(2., dtype=torch.float64)
    """
    sums = fold(parts, "sum")
    if len(places) and len(parts) > 1:
        for part in parts:
            sums.index_add_(0, places + SQUARES, growth(part, sums, places))
    return sums


def growth(part: Tensor, sums: Tensor, places: Tensor) -> Tensor:
    """Return what a part's squares grow by if they are about the mean of other sums, [k]."""
    weights = part.index_select(0, places + _WEIGHT)
    means = part.index_select(0, places + _TOTAL) / weights
    return _squares(means, weights, sums, places)


def add_squares(sums: Tensor, places: Tensor, values: Tensor, weights: Tensor) -> None:
    """Add the squares of values, [n], whose totals and weights are in the sums, at their places."""
    squares = _squares(values, weights, sums, places)
    sums.index_put_((places + SQUARES,), squares, accumulate=True)


def _squares(values: Tensor, weights: Tensor, sums: Tensor, places: Tensor) -> Tensor:
    totals, weighed = (sums.index_select(0, places + at) for at in (_TOTAL, _WEIGHT))
    gaps = values - totals / weighed
    return torch.where(weights == 0, 0.0, weights * gaps * gaps)
