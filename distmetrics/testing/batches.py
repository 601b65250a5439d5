"""Batches as rows of samples, whatever their arguments are: count, take, join. Pure.

An argument has one row a sample if it is a tensor (along its first axis), an array, a list, or a
mapping of such; numbers, texts and the rest belong to the batch as a whole, as ``real=True`` does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from distmetrics.errors import InputError
from distmetrics.testing.equality import EXACT


@dataclass(frozen=True, slots=True)
class Batch:
    """What one ``metric.update(*args, **kwargs)`` is called with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[Any, Any]:
        """All arguments, by place or by name."""
        return {**dict(enumerate(self.args)), **self.kwargs}


Shards = tuple[tuple[Batch, ...], ...]  # for each rank its batches


def identities(shards: Shards) -> tuple[tuple[int, ...], ...]:
    """Return what tells shards apart that are dealt from the same batches."""
    return tuple(tuple(map(id, shard)) for shard in shards)


def map_batches(change: Callable[[Any], Batch], shards: Iterable[Iterable[Any]]) -> Shards:
    """Return shards with ``change`` applied to every batch."""
    return tuple(tuple(map(change, shard)) for shard in shards)


def as_batch(value: Any) -> Batch:
    """Return what a user writes as a batch: a tuple for positional arguments, a mapping for named.

    >>> as_batch((1, 2)) == Batch((1, 2))
    True
    >>> as_batch({"preds": 1}).kwargs
    {'preds': 1}
    """
    if isinstance(value, Batch):
        return value
    if isinstance(value, Mapping):
        return Batch((), value)
    if isinstance(value, tuple):
        return Batch(value)
    args = getattr(value, "args", None)
    if isinstance(args, tuple) and hasattr(value, "kwargs"):  # a recorded call
        return Batch(args, value.kwargs)
    return Batch((value,))


def count(batch: Batch) -> int | None:
    """Return the number of samples, or None where the arguments have none or do not agree.

    >>> count(as_batch((torch.zeros(3, 5), torch.zeros(3))))
    3
    """
    lengths = _lengths(batch.arguments)
    return lengths.pop() if len(lengths) == 1 else None


def take(batch: Batch, indices: Sequence[int]) -> Batch:
    """Return the samples at ``indices``, in that order.

    >>> take(as_batch((torch.tensor([5, 6, 7]), ["a", "b", "c"])), [2, 0]).args
    (tensor([7, 5]), ['c', 'a'])
    """
    return changed(batch, lambda value: _take(value, indices))


def cut(batch: Batch, number: int) -> list[Batch]:
    """Return at most so many parts of a batch, none of them empty.

    >>> [part.args for part in cut(as_batch((["a", "b", "c"],)), 2)]
    [(['a'],), (['b', 'c'],)]
    """
    rows = count(batch) or 1
    if rows < 2:
        return [batch]
    number = min(number, rows)
    edges = [index * rows // number for index in range(number + 1)]
    return [take(batch, range(*ends)) for ends in pairwise(edges)]


def join(batches: Sequence[Batch]) -> Batch:
    """Return one batch with the samples of all.

    Raises:
        InputError: they do not go together: shapes, or arguments that belong to a batch as a whole.

    >>> join([as_batch(([1],)), as_batch(([2, 3],))]).args
    ([1, 2, 3],)
    """
    first = batches[0]
    columns = [batch.arguments for batch in batches]
    for arguments in columns:
        if arguments.keys() != columns[0].keys():
            raise InputError("batches with different arguments cannot be joined")
    joined = _join(columns)
    args = tuple(joined[place] for place in range(len(first.args)))
    return Batch(args, {name: joined[name] for name in first.kwargs})


def changed(batch: Batch, change: Callable[[Any], Any]) -> Batch:
    """Return the batch with ``change`` applied to every argument."""
    kwargs = {name: change(value) for name, value in batch.kwargs.items()}
    return Batch(tuple(map(change, batch.args)), kwargs)


def is_floating(value: Any) -> bool:
    """True for a tensor of floating numbers."""
    return isinstance(value, Tensor) and value.is_floating_point()


def changed_floats(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Return the batch with ``change`` applied to every tensor of floating numbers."""
    return changed(batch, lambda value: change(value) if is_floating(value) else value)


def _has_rows(value: Any) -> bool:
    return isinstance(value, list) or getattr(value, "ndim", 0) > 0


def _lengths(value: Any) -> set[int]:
    if isinstance(value, Mapping):
        return set().union(*map(_lengths, value.values()))
    return {len(value)} if _has_rows(value) else set()


def _take(value: Any, indices: Sequence[int]) -> Any:
    if isinstance(value, Mapping):
        return {key: _take(each, indices) for key, each in value.items()}
    if isinstance(value, list):
        return [value[index] for index in indices]
    return value[list(indices)] if _has_rows(value) else value


def _join(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _join([value[key] for value in values]) for key in first}
    if isinstance(first, list):
        return [item for value in values for item in value]
    if isinstance(first, Tensor) and first.ndim:
        kinds = {(value.shape[1:], value.dtype) for value in values}
        if len(kinds) > 1:
            raise InputError("batches of different shapes cannot be joined")
        return torch.cat(list(values))
    if _has_rows(first):
        import numpy as np

        return np.concatenate(list(values))
    for value in values:
        if EXACT.difference(first, value):
            raise InputError(
                "batches that differ in an argument of the whole batch cannot be joined"
            )
    return first
