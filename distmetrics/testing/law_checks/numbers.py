"""Checks of the laws about numerics: half precision, large counts, shifted data, NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from distmetrics.testing import scenarios
from distmetrics.testing.batches import Shards, changed_floats, is_floating, map_batches
from distmetrics.testing.equality import BITWISE, Equality
from distmetrics.testing.trial import NotJudged, Trial, compare
from distmetrics.tree import map_leaves

_HALF_PRECISION = Equality("relative 0.02, absolute 0.02", 0.02, 0.02, types=False)
_SHIFTED = Equality("relative 0.001", 1e-3, 1e-3, types=False)


def _with_floats(shards: Shards, change: Callable[[Tensor], Tensor]) -> Shards:
    """Change the floating tensors of all batches, of which there must be some."""
    batches = chain.from_iterable(shards)
    if not any(is_floating(x) for batch in batches for x in batch.arguments.values()):
        raise NotJudged("no argument is a tensor of floats")
    return map_batches(lambda batch: changed_floats(batch, change), shards)


def low_precision(trial: Trial) -> None:
    """Compare bfloat16 input with the same numbers in float32."""
    low = _with_floats(trial.dense, lambda x: x.to(torch.bfloat16))
    same = _with_floats(low, lambda x: x.to(torch.float32))
    alone = trial.single(low[0])
    if alone.kind == "raised":
        raise NotJudged(f"bfloat16 input is refused: {alone.text}")
    trial.same_value(same, [low], " in float32", _HALF_PRECISION)


def shift(trial: Trial) -> None:
    """Add 1000 to every floating number."""
    more = _with_floats(trial.dense, lambda x: x + 1000)
    trial.same_value(trial.dense, [more], " before 1000 was added to all", _SHIFTED)


def nan_everywhere(trial: Trial) -> None:
    """Put NaN, and infinity, into the first number of one rank's data."""
    *others, last = trial.dense
    for bad in (torch.nan, torch.inf):

        def spoil(x: Tensor, bad: float = bad) -> Tensor:
            x = x.clone()
            x.reshape(-1)[:1] = bad
            return x

        spoiled = _with_floats((last[:1],), spoil)
        shards = (*others, (*spoiled[0], *last[1:]))
        single = trial.single(list(chain.from_iterable(shards)))
        if single.kind == "raised":
            raise NotJudged(f"{bad} is refused: {single.text}")
        expected, *got = map_leaves(_not_finite, [single.value, *trial.values(shards)])
        compare(expected, got, BITWISE, shards, f" with {bad} in the data")


def _not_finite(leaf: Any) -> Any:
    """Return where numbers are not finite."""
    if isinstance(leaf, Tensor):
        return (~leaf.isfinite()).tolist()
    return isinstance(leaf, float) and not math.isfinite(leaf)


def large_counts(trial: Trial) -> None:
    """Double the states until counts pass 2²⁴, and add one batch."""
    shards = trial.parts(2)
    states = trial.values(shards, scenarios.doubled)
    if not states[0]:
        raise NotJudged("it has states that are no sums, which cannot be doubled that often")
    (big, total), (added, _) = states
    for name in added:
        if _is_count(big[name]) and _is_count(added[name]):
            expected = big[name].double() + added[name].double()
            note = f", the state {name} ({big[name].dtype}) after a batch was added"
            compare(expected, [total[name].double()], BITWISE, shards, note)


def _is_count(x: Any) -> bool:
    """True if all numbers of a tensor are whole, so that they count something."""
    if not isinstance(x, Tensor) or not x.numel() or x.is_complex():
        return False
    numbers = x.double()
    return torch.equal(numbers, numbers.round())
