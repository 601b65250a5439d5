"""How values of one name are combined, over the steps of a rank and over ranks. Pure.

Every kind is brought down to numbers that are added up and numbers of which the largest counts, so
that whatever is logged needs one reduction of each sort. All are float64. The squares of a standard
deviation are about a mean: where two means become one, they grow, see :func:`growth`.

Quantiles are read from counts of buckets. A bucket holds the numbers between two powers of one
base, so that a quantile is right to a relative error of 1 %. Counts are whole numbers: their sum
has the same bits in any order, however much was counted. After Masson, Rim and Lee, "DDSketch: a
fast and fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Literal

import msgspec
import torch
from torch import Tensor

from distmetrics.message import Message

LARGEST_ARRAY = 1 << 27  # elements: 1 GiB of numbers
_TOTAL, _WEIGHT, SQUARES = 0, 1, 2  # where the sums of a standard deviation lie, from the first
_NAN = sys.float_info.max  # stands for NaN, which equals nothing, among what must be the same
_ERROR = 0.01
_BASE = (1 + _ERROR) / (1 - _ERROR)
_LOG_BASE = math.log(_BASE)
_HALF = 2048  # buckets of one sign
_SMALLEST = 1e-9  # what is nearer to zero counts as zero; the last bucket has all from 6e8 on
_BUCKETS = 2 * _HALF + 1  # negative numbers, zero, positive ones
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class _Rule:
    sums: int  # how many numbers are added up
    count: int  # how many there are; of those that come after the sums the largest counts
    # From values and weights, [n] each, what is added up and what is compared, in columns.
    parts: Callable[[Tensor, Tensor], tuple[Sequence[Tensor], Sequence[Tensor]]]
    # What users get, from these numbers; several values by their labels.
    read: Callable[[Sequence[float]], float | dict[str, float]]
    bucket: Callable[[Tensor], Tensor] | None = None  # to which of the sums a value is added
    is_latest: bool = False  # only a rank's latest value counts
    of_samples: bool = False  # a value of one dimension is samples of one number, not an array
    is_centred: bool = False  # the third sum is of squares about the mean of the first two


class Kind(Message, frozen=True):
    """One way to combine values: of a number, or of each element of an array by itself.

    ``size``: the elements of the arrays; 0 for a number.

    >>> kind = Kind("same", 8)
    >>> str(kind), kind.count
    ('same of shape [8]', 16)
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
    def count(self) -> int:
        """How many numbers there are, those of the first element first."""
        return self.rule.count * (self.size or 1)

    @property
    def compared(self) -> bytes:
        """Whether of each number the largest counts."""
        return bytes(self.rule.sums).ljust(self.rule.count, b"\1") * (self.size or 1)

    def read(self, name: str, numbers: Sequence[float]) -> dict[str, Any]:
        """Return the values that users get, by the names that they get."""
        rule, starts = self.rule, range(0, len(numbers), self.rule.count)
        values = [rule.read(numbers[start : start + rule.count]) for start in starts]
        if isinstance(values[0], dict):
            return {f"{name}_{label}": value for label, value in values[0].items()}
        return {name: values if self.size else values[0]}


def _mean_parts(values: Tensor, weights: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    # The mean of no samples is NaN, and its weight is zero: it must not count.
    return [torch.where(weights == 0, 0.0, values * weights), weights], []


def _same_parts(values: Tensor, weights: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    # x is the same everywhere if the largest x is the negative of the largest -x.
    known = values.masked_fill(values.isnan(), _NAN)
    return [], [known, -known]


def _bucket(values: Tensor) -> Tensor:
    """Return the bucket of each value, from float64 values; any for NaN.

    >>> _bucket(torch.tensor([0.0, 1e-9, -1e-9], dtype=torch.float64)).tolist()
    [2048, 2049, 2047]
    """
    powers = (values.abs() / _SMALLEST).log().div(_LOG_BASE)
    steps = powers.floor().add(1).clamp(0, _HALF)
    return torch.nan_to_num(_HALF + steps * values.sign()).long()


def _quantiles(numbers: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p99 and max from counts and the largest value.

    All are NaN where NaN was, or nothing.
    """
    *counts, largest = numbers
    totals = list(accumulate(counts))
    if math.isnan(largest) or not totals[-1]:
        return dict.fromkeys([*_QUANTILES, "max"], math.nan)
    found = {}
    for label, share in _QUANTILES.items():
        rank = max(1.0, math.ceil(share * totals[-1]))
        found[label] = min(_middle(bisect_left(totals, rank)), largest)
    return found | {"max": largest}


def _middle(place: int) -> float:
    """Return the number that is as near as can be, relatively, to all in a bucket."""
    steps = abs(place - _HALF)
    size = _SMALLEST * _BASE**steps * 2 / (1 + _BASE) if steps else 0.0
    return math.copysign(size, place - _HALF)


_RULES = {
    "mean": _Rule(
        2, 2, _mean_parts, lambda numbers: numbers[0] / numbers[1] if numbers[1] else math.nan
    ),
    "sum": _Rule(1, 1, lambda values, _: ([values], []), lambda numbers: numbers[0]),
    "max": _Rule(0, 1, lambda values, _: ([], [values]), lambda numbers: numbers[0]),
    "min": _Rule(0, 1, lambda values, _: ([], [-values]), lambda numbers: -numbers[0]),
    "same": _Rule(
        0, 2, _same_parts, lambda numbers: math.nan if numbers[0] == _NAN else numbers[0],
        is_latest=True,
    ),
    "std": _Rule(
        3, 3, _mean_parts,
        lambda numbers: math.sqrt(numbers[2] / (numbers[1] - 1)) if numbers[1] > 1 else math.nan,
        of_samples=True, is_centred=True,
    ),
    "quantile": _Rule(
        _BUCKETS, _BUCKETS + 1, lambda values, _: ([torch.ones_like(values)], [values]), _quantiles,
        bucket=_bucket, of_samples=True,
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
