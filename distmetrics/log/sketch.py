"""Quantiles of a stream from counts of buckets, which ranks add up.

A bucket holds the numbers between two powers of one base, so that a quantile is right to a relative
error of 1 %. Counts are whole numbers: their sum has the same bits in any order, and a sketch has
one size, however much it has seen. After Masson, Rim and Lee, "DDSketch: a fast and
fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

_ERROR = 0.01
_BASE = (1 + _ERROR) / (1 - _ERROR)
_LOG_BASE = math.log(_BASE)
_HALF = 2048  # buckets of one sign
_SMALLEST = 1e-9  # what is nearer to zero counts as zero; the last bucket has all from 6e8 on
SIZE = 2 * _HALF + 2  # negative numbers, zero, positive ones; and at the end NaN
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def buckets(values: Tensor) -> Tensor:
    """Return the bucket of each value, from float64 values.

    >>> buckets(torch.tensor([0.0, 1e-9, math.nan], dtype=torch.float64)).tolist()
    [2048, 2049, 4097]
    """
    powers = (values.abs() / _SMALLEST).log().div(_LOG_BASE)
    steps = powers.floor().add(1).clamp(0, _HALF)
    place = _HALF + steps * values.sign()
    return torch.where(values.isnan(), SIZE - 1, place).long()


def quantiles(numbers: Sequence[float], largest: float) -> dict[str, float]:
    """Return p50, p90, p99 and max from counts; all are NaN where NaN was, or nothing."""
    if numbers[-1] or not any(numbers):
        return dict.fromkeys([*_QUANTILES, "max"], math.nan)
    totals = list(accumulate(numbers[:-1]))
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
