"""How values of one name are combined, over the steps of a rank and over ranks. Pure.

Every kind is brought down to numbers that are added up and numbers of which the largest counts, so
that whatever is logged needs one reduction of each sort. All are float64. The squares of a standard
deviation are about a mean: where two means become one, they grow, see :func:`growth`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import torch
from torch import Tensor

from distmetrics.log import sketch
from distmetrics.message import Message

LARGEST_ARRAY = 1 << 27  # elements: 1 GiB of numbers
_TOTAL, _WEIGHT, SQUARES = 0, 1, 2  # where the sums of a standard deviation lie, from the first
_NAN = sys.float_info.max  # stands for NaN, which equals nothing, among what must be the same
_Numbers = Sequence[float]


@dataclass(frozen=True)
class _Rule:
    sums: int  # how many numbers are added up
    maxima: int  # of how many the largest counts
    # From values and weights, [n] each, what is added up and what is compared, in columns.
    parts: Callable[[Tensor, Tensor], tuple[Sequence[Tensor], Sequence[Tensor]]]
    # What users get, from the sums and maxima; several values by their labels.
    read: Callable[[_Numbers, _Numbers], float | dict[str, float]]
    bucket: Callable[[Tensor], Tensor] | None = None  # to which of the sums a value is added
    is_latest: bool = False  # only a rank's latest value counts
    of_samples: bool = False  # a value of one dimension is samples of one number, not an array
    is_centred: bool = False  # the third sum is of squares about the mean of the first two


class Kind(Message, frozen=True):
    """One way to combine values: of a number, or of each element of an array by itself.

    ``size``: the elements of the arrays; 0 for a number.

    >>> kind = Kind("max", 8)
    >>> str(kind), kind.maxima
    ('max of shape [8]', 8)
    """

    op: Literal["mean", "sum", "max", "min", "same", "std", "quantile"]
    size: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ARRAY)] = 0

    def __post_init__(self) -> None:
        if self.size and self.rule.of_samples:
            raise ValueError(f"no arrays of {self.op}")

    def __str__(self) -> str:
        return f"{self.op} of shape [{self.size}]" if self.size else self.op

    @property
    def rule(self) -> _Rule:
        """How the values are combined."""
        return _RULES[self.op]

    @property
    def sums(self) -> int:
        """How many numbers are added up."""
        return self.rule.sums * (self.size or 1)

    @property
    def maxima(self) -> int:
        """Of how many numbers the largest counts."""
        return self.rule.maxima * (self.size or 1)

    def read(self, name: str, sums: _Numbers, maxima: _Numbers) -> dict[str, Any]:
        """Return the values that users get, by the names that they get."""
        rule, values = self.rule, []
        for at in range(self.size or 1):
            own = sums[at * rule.sums : (at + 1) * rule.sums]
            values.append(rule.read(own, maxima[at * rule.maxima : (at + 1) * rule.maxima]))
        if self.size:
            return {name: values}
        (value,) = values
        if isinstance(value, dict):
            return {f"{name}_{label}": each for label, each in value.items()}
        return {name: value}


def _mean_parts(values: Tensor, weights: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    # The mean of no samples is NaN, and its weight is zero: it must not count.
    return [torch.where(weights == 0, 0.0, values * weights), weights], []


def _same_parts(values: Tensor, weights: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    # x is the same everywhere if the largest x is the negative of the largest -x.
    known = values.masked_fill(values.isnan(), _NAN)
    return [], [known, -known]


def is_same(maxima: _Numbers) -> bool:
    """True if all ranks had the same value, from the maxima of the kind "same".

    >>> is_same([1.0, -1.0, 2.0, -3.0])
    False
    """
    return all(a == -b for a, b in zip(maxima[::2], maxima[1::2], strict=True))


_RULES = {
    "mean": _Rule(
        2, 0, _mean_parts, lambda sums, _: sums[0] / sums[1] if sums[1] else math.nan
    ),
    "sum": _Rule(1, 0, lambda values, _: ([values], []), lambda sums, _: sums[0]),
    "max": _Rule(0, 1, lambda values, _: ([], [values]), lambda _, maxima: maxima[0]),
    "min": _Rule(0, 1, lambda values, _: ([], [-values]), lambda _, maxima: -maxima[0]),
    "same": _Rule(
        0, 2, _same_parts, lambda _, maxima: math.nan if maxima[0] == _NAN else maxima[0],
        is_latest=True,
    ),
    "std": _Rule(
        3, 0, _mean_parts,
        lambda sums, _: math.sqrt(sums[2] / (sums[1] - 1.0)) if sums[1] > 1.0 else math.nan,
        of_samples=True, is_centred=True,
    ),
    "quantile": _Rule(
        sketch.SIZE, 1, lambda values, _: ([torch.ones_like(values)], [values]),
        lambda sums, maxima: sketch.quantiles(sums, maxima[0]),
        bucket=sketch.buckets, of_samples=True,
    ),
}  # fmt: skip
KINDS = {op: Kind(op) for op in _RULES}  # type: ignore[arg-type]


def growth(part: Tensor, sums: Tensor, places: Tensor) -> Tensor:
    """Return what a part's squares grow by if they are about the mean of the sums, [k]."""
    weights = part.index_select(0, places + _WEIGHT)
    means = part.index_select(0, places + _TOTAL) / weights
    return squares_of(means, weights, sums, places)


def squares_of(values: Tensor, weights: Tensor, sums: Tensor, places: Tensor) -> Tensor:
    """Return the weighted squares of values, [n], about the means of the sums at their places."""
    totals, weighed = (sums.index_select(0, places + at) for at in (_TOTAL, _WEIGHT))
    gaps = values - totals / weighed
    return torch.where(weights == 0, 0.0, weights * gaps * gaps)
