"""Columns of samples as tensors that travel, and back. Pure.

Rows of a tensor and numbers travel as one tensor; texts joined, with a zero between them, and items
of any kind as one list of data. Tensors of different shape travel as two: their shapes, and all of
them joined.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.buckets import dtype_of, from_bytes, short_name, to_bytes
from distmetrics.collectives.samples.lazy_list import LazyList, in_order
from distmetrics.collectives.samples.schema import SEPARATOR, Column, Group, Schema
from distmetrics.collectives.wire import deserialize, serialize

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
        if all(map(str.isascii, values)):
            return sum(map(len, values))
        joined = SEPARATOR.join(values)
        return len(joined.encode(*_TEXT))
    if column.kind == "items":
        return serialize(values).nbytes
    return int(sizes_of(column, values).sum())


def sizes_of(column: Column, values: Any) -> Tensor:
    """Return how many bytes each sample takes, about."""
    count = len(values)
    if column.kind == "rows":
        dtype = dtype_of(column.dtype)
        width = dtype.itemsize * math.prod(column.shape)
        sizes = [width] * count
    elif column.kind in _NUMBERS:
        width = _NUMBERS[column.kind].itemsize
        sizes = [width] * count
    elif column.kind == "text":
        sizes = [len(text.encode(*_TEXT)) for text in values]
    elif column.kind == "ragged":
        sizes = [item.nbytes for item in values]
    else:
        sizes = [serialize(item).nbytes for item in values]
    return torch.tensor(sizes, dtype=torch.int64)


def parts_of(
    column: Column,
    values: Any,
    rows: Tensor,
) -> list[Tensor]:
    """Return the tensors in which some samples of a column travel; ``rows`` ascend."""
    kind = column.kind
    is_all = len(rows) == len(values)
    if kind == "rows":
        own = values.detach()
        if not is_all:
            own = own[rows.to(own.device)]
        return [own]
    chosen = values
    if not is_all:
        chosen = [values[row] for row in rows.tolist()]
    if kind == "int":
        numbers = torch.tensor(chosen, dtype=torch.int64)
        return [narrowed(numbers)]
    if kind in _NUMBERS:
        numbers = torch.tensor(chosen, dtype=_NUMBERS[kind])
        return [numbers]
    if kind == "text":
        joined = SEPARATOR.join(chosen)
        return [from_bytes(joined.encode(*_TEXT))]
    if kind == "ragged":
        return _joined(chosen, len(column.shape))
    return [serialize(chosen)]


def _joined(tensors: Sequence[Tensor], dimensions: int) -> list[Tensor]:
    """Return the shapes of tensors, and their elements."""
    sizes: list[int] = []
    flat = []
    for tensor in tensors:
        sizes += tensor.shape
        flat.append(tensor.detach().reshape(-1))
    shapes = torch.tensor(sizes, dtype=torch.int64)
    shapes = shapes.reshape(len(tensors), dimensions)
    return [narrowed(shapes), torch.cat(flat)]


def parts_in(column: Column) -> int:
    """Return how many tensors a column travels in."""
    return _PARTS.get(column.kind, 1)


def check_parts(
    column: Column,
    parts: Sequence[Tensor],
    count: int,
) -> None:
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
        _check_joined(column, first, parts[1])


def _check_joined(
    column: Column,
    shapes: Tensor,
    data: Tensor,
) -> None:
    lengths = _lengths_in(shapes)
    total = int(lengths.sum())
    dtype = short_name(data.dtype)
    if dtype != column.dtype or data.shape != (total,):
        raise ValueError(f"{dtype}{[*data.shape]} as tensors of {total} elements")
    if (shapes < 0).any():
        raise ValueError("a shape that is none")


def assemble(
    schema: Schema,
    sources: Sequence[Sequence[Tensor]],
    order: Tensor,
    accelerator: torch.device,
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
    schema: Schema,
    parts: Iterator[tuple[Tensor, ...]],
    order: Tensor,
    accelerator: torch.device,
) -> Any:
    if isinstance(schema, Group):
        children = [_assemble(child, parts, order, accelerator) for child in schema.children]
        if schema.kind == "tuple":
            return tuple(children)
        by_key = dict(zip(schema.keys, children, strict=True))
        if schema.kind == "dict":
            return by_key
        return _lazy(order, _records, by_key, len(order))
    own = [next(parts, ()) for _ in range(parts_in(schema))]
    device = torch.device("cpu")
    if schema.on_accelerator:
        device = accelerator
    if schema.kind == "rows":
        return _rows(schema, own[0], order, device)
    if schema.kind == "empty" or not own[0]:
        return []
    if schema.kind in _NUMBERS:
        dtype = _NUMBERS[schema.kind]
        numbers = [row.to("cpu", dtype) for row in own[0]]
        joined = torch.cat(numbers)
        return joined[order].tolist()
    if schema.kind == "text":
        return _lazy(order, _texts, own[0], order)
    if schema.kind == "items":
        return _lazy(order, _objects, own[0], order, accelerator)
    return _lazy(order, _tensors, own[0], own[1], order, device)


def _rows(
    column: Column,
    rows: Sequence[Tensor],
    order: Tensor,
    device: torch.device,
) -> Tensor:
    shape = (0, *column.shape)
    parts = [torch.empty(shape, dtype=dtype_of(column.dtype), device=device)]
    parts += [row.to(device) for row in rows]
    joined = torch.cat(parts)
    return joined[order.to(device)]


def _lazy(
    order: Tensor,
    make: Callable[..., list[Any]],
    *args: Any,
) -> LazyList:
    return LazyList(functools.partial(make, *args), len(order))


def _texts(runs: Sequence[Tensor], order: Tensor) -> list[str]:
    texts: list[str] = []
    for run in runs:
        text = to_bytes(run).decode(*_TEXT)
        texts += text.split(SEPARATOR)
    return in_order(texts, order)


def _objects(
    runs: Sequence[Tensor],
    order: Tensor,
    accelerator: torch.device,
) -> list[Any]:
    objects: list[Any] = []
    for run in runs:
        objects += deserialize(run, accelerator=accelerator)
    return in_order(objects, order)


def _tensors(
    shapes: Sequence[Tensor],
    data: Sequence[Tensor],
    order: Tensor,
    device: torch.device,
) -> list[Tensor]:
    """Return tensors of different shape, each of its own memory."""
    tensors: list[Tensor] = []
    for some, joined in zip(shapes, data, strict=True):
        lengths = _lengths_in(some).tolist()
        flat = joined.to(device).split_with_sizes(lengths)
        for part, shape in zip(flat, some.tolist(), strict=True):
            tensors.append(part.clone().reshape(shape))
    return in_order(tensors, order)


def _records(
    columns: dict[str | int, Sequence[Any]],
    count: int,
) -> list[Any]:
    """Return dicts from a list for each key."""
    if not columns:
        return [{} for _ in range(count)]
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _lengths_in(shapes: Tensor) -> Tensor:
    return shapes.to("cpu", torch.int64).prod(1)
