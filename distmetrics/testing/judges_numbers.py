"""Judges of the laws about numerics; see :mod:`distmetrics.testing.judges`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from distmetrics.testing import acts, laws
from distmetrics.testing.equality import BITWISE, Equality, brief, relative
from distmetrics.testing.judges import compare, dense, judges, ours, parts, values
from distmetrics.testing.rows import Batch, changed
from distmetrics.testing.trial import Broken, NotJudged, Shards, Trial

__all__: list[str] = []


def floats(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Change the floating tensors of a batch."""
    return changed(
        batch, lambda x: change(x) if isinstance(x, Tensor) and x.is_floating_point() else x
    )


def changed_floats(trial: Trial, shards: Shards, change: Callable[[Tensor], Tensor]) -> Shards:
    """Change the floating tensors of all batches, of which there must be some."""
    batches = [batch for shard in shards for batch in shard]
    if not any(
        isinstance(x, Tensor) and x.is_floating_point()
        for b in batches
        for x in (*b.args, *b.kwargs.values())
    ):
        raise NotJudged("no argument is a tensor of floats")
    return tuple(tuple(floats(batch, change) for batch in shard) for shard in shards)


@judges(laws.LOW_PRECISION)
def low_precision(trial: Trial) -> Broken | None:
    """Compare bfloat16 input with the same numbers in float32."""
    shards = dense(trial)
    low = changed_floats(trial, shards, lambda x: x.to(torch.bfloat16))
    same = changed_floats(trial, low, lambda x: x.to(torch.float32))
    if (alone := trial.single(low[0])).kind == "raised":
        raise NotJudged(f"bfloat16 input is refused: {alone.text}")
    near = relative(0.02, 0.02)
    near = Equality(near.name, near.rtol, near.atol, types=False)
    return compare(values(trial, same)[0], values(trial, low)[:1], near, low, " in float32")


@judges(laws.SHIFT)
def shift(trial: Trial) -> Broken | None:
    """Add 1000 to every floating number."""
    shards = dense(trial)
    more = changed_floats(trial, shards, lambda x: x + 1000)
    near = Equality("relative 0.001", 1e-3, 1e-3, types=False)
    return compare(
        values(trial, shards)[0],
        values(trial, more)[:1],
        near,
        more,
        " before 1000 was added to all",
    )


@judges(laws.NAN_EVERYWHERE)
def nan_everywhere(trial: Trial) -> Broken | None:
    """Put NaN, and infinity, into the first number of one rank's data."""
    shards = dense(trial)
    for bad in (float("nan"), float("inf")):
        first = changed_floats(trial, shards[-1:], lambda x, bad=bad: _with(x, bad))[0]  # type: ignore[misc]
        more = (*shards[:-1], (first[0], *shards[-1][1:]))
        single = trial.single([batch for shard in more for batch in shard])
        if single.kind == "raised":
            raise NotJudged(f"{bad} is refused: {single.text}")
        got = values(trial, more)
        if broken := compare(
            _wrong(single.value),
            [_wrong(x) for x in got],
            BITWISE,
            more,
            f" with {bad} in the data",
        ):
            return broken
    return None


def _with(x: Tensor, bad: float) -> Tensor:
    x = x.clone()
    x.reshape(-1)[:1] = bad
    return x


def _wrong(value: Any) -> Any:
    """Return where a value is no finite number."""
    if isinstance(value, Tensor):
        return (~value.isfinite()).tolist()
    if isinstance(value, dict):
        return {key: _wrong(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_wrong(each) for each in value]
    return value != value if isinstance(value, float) else None


@judges(laws.LARGE_COUNTS)
def large_counts(trial: Trial) -> Broken | None:
    """Double the states until counts pass 2²⁴, and add one batch."""
    ours(trial, "states are doubled by distmetrics' sync")
    half = parts(trial, 2)
    got = values(trial, half, acts.doubled)
    if not got[0]:
        raise NotJudged("it has lists, which cannot be doubled that often")
    (big, total), (one, _) = got
    for name, added in one.items():
        if not all(
            isinstance(state[name], Tensor) and _is_count(state[name]) for state in (big, one)
        ):
            continue
        expected = big[name].double() + added.double()
        if (total[name].double() != expected).any():
            detail = f"the state {name} ({big[name].dtype}) is {brief(total[name])} after {brief(added)} was added"
            return Broken(brief(expected), (brief(total[name]),), detail, half)
    return None


def _is_count(x: Tensor) -> bool:
    """Whether all numbers are whole, so that they count something."""
    return bool(x.numel()) and not x.is_complex() and bool((x.double() == x.double().round()).all())
