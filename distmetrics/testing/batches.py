"""Batches as rows of samples: count, take, cut, join; and batches as code.

A batch is what one ``update`` is called with: a tuple of positional arguments, or a mapping of
named ones. An argument has one row per sample if it is a tensor (along its first axis), an array, a
list, or a mapping of such. Numbers, texts and the rest belong to the batch as a whole, such as
``real=True``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from distmetrics.errors import InputError, InputTypeError
from distmetrics.testing.equality import EXACT

Batch = tuple[Any, ...] | Mapping[str, Any]
Shards = tuple[tuple[Batch, ...], ...]  # for each rank its batches

_PLAIN = (torch.float32, torch.int64, torch.bool)  # what torch.tensor makes of Python's numbers


def as_batch(value: Any) -> Batch:
    """Return a tuple or a mapping as it is, and anything else as the only argument.

    >>> as_batch((1, 2)), as_batch({"preds": 1}), as_batch(3)
    ((1, 2), {'preds': 1}, (3,))
    """
    return value if isinstance(value, tuple | Mapping) else (value,)


def listed(batches: Any) -> list[Batch]:
    """Return a user's batches as a list.

    Raises:
        InputTypeError: they are not a list.
        InputError: the list is empty.
    """
    if isinstance(batches, str | bytes | Mapping) or not isinstance(batches, Iterable):
        raise InputTypeError(
            "batches must be a list of update arguments, or a hypothesis strategy of such lists, "
            f"got {type(batches).__name__}",
            do="pass [(preds, target), (preds, target)]",
        )
    made = [as_batch(batch) for batch in batches]
    if not made:
        raise InputError("batches is empty: there is nothing to judge a metric on")
    return made


def identities(shards: Shards) -> tuple[tuple[int, ...], ...]:
    """Return what tells shards apart that are dealt from the same batches."""
    return tuple(tuple(map(id, shard)) for shard in shards)


def arguments_of(batch: Batch) -> Iterable[Any]:
    """Return all arguments, positional or named."""
    return batch.values() if isinstance(batch, Mapping) else batch


def count(batch: Batch) -> int | None:
    """Return the number of samples, or None if the arguments have none or do not agree.

    >>> count((torch.zeros(3, 5), torch.zeros(3)))
    3
    """
    lengths = set().union(*map(_lengths, arguments_of(batch)))
    return lengths.pop() if len(lengths) == 1 else None


def take(batch: Batch, indices: Sequence[int]) -> Batch:
    """Return the samples at ``indices``, in that order.

    >>> take((torch.tensor([5, 6, 7]), ["a", "b", "c"]), [2, 0])
    (tensor([7, 5]), ['c', 'a'])
    """
    return changed(batch, lambda value: _take(value, indices))


def cut(batch: Batch, number: int) -> list[Batch]:
    """Return at most ``number`` parts of a batch, none of them empty.

    >>> cut((["a", "b", "c"],), 2)
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
        InputError: shapes differ, or arguments that belong to a batch as a whole.

    >>> join([([1],), ([2, 3],)])
    ([1, 2, 3],)
    """
    columns = [batch if isinstance(batch, Mapping) else dict(enumerate(batch)) for batch in batches]
    if any(column.keys() != columns[0].keys() for column in columns):
        raise InputError("batches with different arguments cannot be joined")
    joined = _join(columns)
    return joined if isinstance(batches[0], Mapping) else tuple(joined.values())


def changed(batch: Batch, change: Callable[[Any], Any]) -> Batch:
    """Return the batch with ``change`` applied to every argument."""
    if isinstance(batch, Mapping):
        return {name: change(value) for name, value in batch.items()}
    return tuple(map(change, batch))


def is_floating(value: Any) -> bool:
    """Return True for a tensor of floating numbers."""
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


def code(value: Any) -> str:
    """Return a value as code that makes it again; names used are ``torch`` and ``np``.

    >>> code((torch.tensor([0.1, float("nan")]), {"real": True}))
    "(torch.tensor([0.1, float('nan')]), {'real': True})"
    """
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {code(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(code, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(code, value))}{',' if len(value) == 1 else ''})"
    if type(value).__module__ == "numpy":
        return f"np.array({_numbers(value.tolist())}, dtype={value.dtype.name!r})"
    return _numbers(value) if isinstance(value, float) else repr(value)


def _tensor(x: Tensor) -> str:
    if x.numel() == 0:
        return f"torch.zeros({tuple(x.shape)}, dtype={x.dtype})"
    plain = x.detach().cpu()
    numbers = plain.tolist()
    if x.is_floating_point() and x.dtype != torch.float64:
        # NumPy writes a float32 with no more digits than it takes to get it back.
        numbers = plain.float().numpy().astype(str).astype(float).tolist()
    dtype = "" if x.dtype in _PLAIN else f", dtype={x.dtype}"
    return f"torch.tensor({_numbers(numbers)}{dtype})"


def _numbers(value: Any) -> str:
    """Return numbers as code: Python has no literal for NaN and infinity."""
    return re.sub(r"\b(nan|inf)\b", r"float('\1')", repr(value))
