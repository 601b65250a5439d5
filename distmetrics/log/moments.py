"""Sums of a total, a weight, and squares about their mean: what those of two parts amount to.

Squares about zero would lose what matters where a mean is large and the spread is small. Those
about the mean a are brought to another one b exactly: Σ w (x - b)² = Σ w (x - a)² + W (a - b)².
After Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", Stanford, 1979.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distmetrics.comm.base import fold

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
