"""Columns of samples as tensors that travel, and back. Pure.

Rows of a tensor and numbers travel as one tensor; texts joined, with a zero between them, and items
of any kind as one list of data. Tensors of different shape travel as two: their shapes, and all of
them joined.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.pack import dtype_of, from_bytes, short_name, to_bytes
from distmetrics.collectives.samples.lazy_list import LazyList, in_order
from distmetrics.collectives.samples.schema import SEPARATOR, Column, Group, Schema
from distmetrics.collectives.serialize import deserialize, serialize

_NUMBERS = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}
_INTEGERS = (torch.uint8, torch.int16, torch.int32, torch.int64)
_PARTS = {"ragged": 2, "empty": 0}  # of other columns: 1
_TEXT = ("utf-8", "surrogatepass")  # what a Python string may hold


def narrowed(numbers: Tensor) -> Tensor:
    """Return integers in the smallest dtype that holds them all.

    >>> narrowed(torch.tensor([3, 255])).dtype, narrowed(torch.tensor([-1])).dtype
    (torch.uint8, torch.int16)
    """
    if numbers.numel() == 0:
        return numbers.to(torch.uint8)
    low, high = numbers.aminmax()
    for dtype in _INTEGERS:
        limits = torch.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return numbers.to(dtype)
    return numbers


def nbytes_of(column: Column, values: Any) -> int:
    """Return how many bytes the samples of a column take, about.

    Raises:
        InputTypeError: an item is no data.
    """
    if column.kind == "text":
        return len(SEPARATOR.join(values).encode(*_TEXT))
    if column.kind == "items":
        return serialize(values).nbytes
    return int(sizes_of(column, values).sum())


def sizes_of(column: Column, values: Any) -> Tensor:
    """Return how many bytes each sample takes, about."""
    if column.kind == "rows":
        row = torch.empty((1, *column.shape), dtype=dtype_of(column.dtype), device="meta")
        sizes = [row.nbytes] * len(values)
    elif column.kind in _NUMBERS:
        sizes = [_NUMBERS[column.kind].itemsize] * len(values)
    elif column.kind == "text":
        sizes = [len(text.encode(*_TEXT)) for text in values]
    elif column.kind == "ragged":
        sizes = [item.nbytes for item in values]
    else:
        sizes = [serialize(item).nbytes for item in values]
    return torch.tensor(sizes, dtype=torch.int64)


def parts_of(column: Column, values: Any, rows: Tensor) -> list[Tensor]:
    """Return the tensors in which some samples of a column travel; ``rows`` ascend."""
    kind = column.kind
    is_all = len(rows) == len(values)
    if kind == "rows":
        plain = values.detach()
        return [plain if is_all else plain[rows.to(plain.device)]]
    chosen = values if is_all else [values[row] for row in rows.tolist()]
    if kind in _NUMBERS:
        numbers = torch.tensor(chosen, dtype=_NUMBERS[kind])
        return [narrowed(numbers) if kind == "int" else numbers]
    if kind == "text":
        return [from_bytes(SEPARATOR.join(chosen).encode(*_TEXT))]
    if kind == "ragged":
        shapes = torch.tensor([[*item.shape] for item in chosen], dtype=torch.int64)
        flat = [item.detach().reshape(-1) for item in chosen]
        return [narrowed(shapes.reshape(len(chosen), len(column.shape))), torch.cat(flat)]
    return [serialize(chosen)]


def parts_in(column: Column) -> int:
    """Return how many tensors a column travels in."""
    return _PARTS.get(column.kind, 1)


def check_parts(column: Column, parts: Sequence[Tensor], count: int) -> None:
    """Raise anything where a peer's tensors are not ``count`` samples of a column."""
    first = parts[0]
    dtypes: tuple[torch.dtype, ...] = _INTEGERS
    shape: tuple[int, ...] = (count,)
    if column.kind == "rows":
        dtypes = (dtype_of(column.dtype),)
        shape = (count, *column.shape)
    elif column.kind == "ragged":
        shape = (count, len(column.shape))
    elif column.kind in ("text", "items"):  # of what is in them, only who reads it needs to know
        dtypes = (torch.uint8,)
        shape = (first.numel(),)
    elif column.kind != "int":
        dtypes = (_NUMBERS[column.kind],)
    if first.shape != shape or first.dtype not in dtypes:
        raise ValueError(f"{short_name(first.dtype)}{[*first.shape]} as {column.kind}")
    if column.kind == "ragged":
        lengths = _lengths_in(first)
        is_whole = parts[1].shape == (int(lengths.sum()),)
        if not is_whole or short_name(parts[1].dtype) != column.dtype or (first < 0).any():
            raise ValueError(f"{short_name(parts[1].dtype)}{[*parts[1].shape]} as tensors")


def assemble(
    schema: Schema, sources: Sequence[Sequence[Tensor]], order: Tensor, accelerator: torch.device
) -> Any:
    """Return the tree of samples from the tensors of several sources.

    Args:
        schema: of the tree.
        sources: from each, the tensors of all columns.
        order: for each sample of the result, its place among those of all sources, joined.
        accelerator: where tensors go that were on one.
    """
    parts = iter([*zip(*sources, strict=True)])
    return _assemble(schema, parts, order, accelerator)


def _assemble(
    schema: Schema, parts: Iterator[tuple[Tensor, ...]], order: Tensor, accelerator: torch.device
) -> Any:
    if isinstance(schema, Group):
        children = [_assemble(child, parts, order, accelerator) for child in schema.children]
        if schema.kind == "tuple":
            return tuple(children)
        by_key = dict(zip(schema.keys, children, strict=True))
        return by_key if schema.kind == "dict" else _lazy(order, _records, by_key, len(order))
    own = [next(parts, ()) for _ in range(parts_in(schema))]
    device = accelerator if schema.on_accelerator else torch.device("cpu")
    if schema.kind == "rows":
        empty = torch.empty((0, *schema.shape), dtype=dtype_of(schema.dtype), device=device)
        rows = [row.to(device) for row in own[0]]
        return torch.cat(rows or [empty])[order.to(device)]
    if schema.kind == "empty" or not own[0]:
        return []
    if schema.kind in _NUMBERS:
        numbers = [row.to("cpu", _NUMBERS[schema.kind]) for row in own[0]]
        return torch.cat(numbers)[order].tolist()
    if schema.kind == "text":
        return _lazy(order, _texts, own[0], order)
    if schema.kind == "items":
        return _lazy(order, _objects, own[0], order, accelerator)
    return _lazy(order, _tensors, own[0], own[1], order, device)


def _lazy(order: Tensor, make: Callable[..., list[Any]], *args: Any) -> LazyList:
    return LazyList(functools.partial(make, *args), len(order))


def _texts(runs: Sequence[Tensor], order: Tensor) -> list[str]:
    texts: list[str] = []
    for run in runs:
        texts += to_bytes(run).decode(*_TEXT).split(SEPARATOR)
    return in_order(texts, order)


def _objects(runs: Sequence[Tensor], order: Tensor, accelerator: torch.device) -> list[Any]:
    objects: list[Any] = []
    for run in runs:
        objects += deserialize(run, accelerator=accelerator)
    return in_order(objects, order)


def _tensors(
    shapes: Sequence[Tensor], data: Sequence[Tensor], order: Tensor, device: torch.device
) -> list[Tensor]:
    """Return tensors of different shape, each of its own memory."""
    tensors: list[Tensor] = []
    for some, joined in zip(shapes, data, strict=True):
        flat = joined.to(device).split_with_sizes(_lengths_in(some).tolist())
        for part, shape in zip(flat, some.tolist(), strict=True):
            tensors.append(part.clone().reshape(shape))
    return in_order(tensors, order)


def _records(columns: dict[str | int, Sequence[Any]], count: int) -> list[Any]:
    """Return dicts from a list for each key."""
    if not columns:
        return [{} for _ in range(count)]
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _lengths_in(shapes: Tensor) -> Tensor:
    return shapes.to("cpu", torch.int64).prod(1)
