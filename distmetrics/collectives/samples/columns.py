"""Columns of samples as tensors that travel, and back. Pure.

Rows of a tensor and numbers travel as one tensor. Texts, and tensors of different shape, travel as
two: how long each is, and all of them joined. Items of any kind travel as one list.
"""

from __future__ import annotations

import array
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.pack import dtype_of, from_bytes, short_name, to_bytes
from distmetrics.collectives.samples.schema import Column, Group, Schema
from distmetrics.collectives.samples.sequences import (
    LazyList,
    lengths_in,
    objects_of,
    records_of,
    tensors_of,
    texts_of,
)
from distmetrics.collectives.serialize import serialize

_NUMBERS = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}
_INTEGERS = (torch.uint8, torch.int16, torch.int32, torch.int64)
_JOINED = ("text", "ragged")
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


def from_texts(texts: Sequence[str]) -> list[Tensor]:
    """Return how many bytes each text has, and their bytes."""
    if all(map(str.isascii, texts)):
        return [narrowed(_integers(map(len, texts))), from_bytes("".join(texts).encode())]
    encoded = [text.encode(*_TEXT) for text in texts]
    return [narrowed(_integers(map(len, encoded))), from_bytes(b"".join(encoded))]


def _integers(values: Iterable[int]) -> Tensor:
    """Return integers as a tensor, several times faster than ``torch.tensor`` does."""
    numbers = array.array("q", values)
    return torch.frombuffer(numbers, dtype=torch.int64) if numbers else torch.empty(0).long()


def to_texts(sizes: Tensor, data: Tensor, *, count: int) -> list[str]:
    """Return what :func:`from_texts` was given; raise anything for something else."""
    check_parts(Column("text"), [sizes, data], count)
    return texts_of([(sizes, data)], torch.arange(count))


def nbytes_of(column: Column, values: Any) -> int:
    """Return how many bytes the samples of a column take, without what tells their lengths.

    Raises:
        InputTypeError: an item is no data.
    """
    if column.kind == "text":
        if all(map(str.isascii, values)):
            return sum(map(len, values))
    elif column.kind == "items":
        return serialize(values).nbytes
    return int(sizes_of(column, values).sum())


def sizes_of(column: Column, values: Any) -> Tensor:
    """Return how many bytes each sample takes."""
    count = len(values)
    if column.kind == "rows":
        row = torch.empty((1, *column.shape), dtype=dtype_of(column.dtype), device="meta")
        return torch.full((count,), row.nbytes, dtype=torch.int64)
    if column.kind in _NUMBERS:
        return torch.full((count,), _NUMBERS[column.kind].itemsize, dtype=torch.int64)
    if column.kind == "text":
        return _integers(len(text.encode(*_TEXT)) for text in values)
    if column.kind == "ragged":
        return _integers(item.nbytes for item in values)
    return _integers(serialize(item).nbytes for item in values)


def parts_of(column: Column, values: Any, rows: Tensor) -> list[Tensor]:
    """Return the tensors in which some samples of a column travel; ``rows`` ascend."""
    kind = column.kind
    is_all = len(rows) == len(values)
    if kind == "empty":
        return []
    if kind == "rows":
        rows_only = values.detach()
        return [rows_only if is_all else rows_only[rows.to(values.device)]]
    chosen = values if is_all else [values[row] for row in rows.tolist()]
    if kind in _NUMBERS:
        numbers = torch.tensor(chosen, dtype=_NUMBERS[kind])
        return [narrowed(numbers) if kind == "int" else numbers]
    if kind == "text":
        return from_texts(chosen)
    if kind == "ragged":
        shapes = torch.tensor([[*item.shape] for item in chosen], dtype=torch.int64)
        shapes = shapes.reshape(len(chosen), len(column.shape))
        flat = [item.detach().reshape(-1) for item in chosen]
        return [narrowed(shapes), torch.cat(flat)]
    return [serialize(chosen)]


def parts_in(column: Column) -> int:
    """Return how many tensors a column travels in."""
    return 2 if column.kind in _JOINED else int(column.kind != "empty")


def check_parts(column: Column, parts: Sequence[Tensor], count: int) -> None:
    """Raise anything where a peer's tensors are not ``count`` samples of a column."""
    first = parts[0]
    expected: tuple[int, ...] = (count,)
    dtypes: tuple[torch.dtype, ...] = _INTEGERS
    if column.kind == "items":
        expected = (first.numel(),)
        dtypes = (torch.uint8,)
    elif column.kind == "rows":
        expected = (count, *column.shape)
        dtypes = (dtype_of(column.dtype),)
    elif column.kind in ("float", "bool"):
        dtypes = (_NUMBERS[column.kind],)
    elif column.kind == "ragged":
        expected = (count, len(column.shape))
    if first.shape != expected or first.dtype not in dtypes:
        raise ValueError(f"{short_name(first.dtype)}{[*first.shape]} as {column.kind}")
    if len(parts) == 1:
        return
    data = parts[1]
    lengths = lengths_in(first)
    dtype = dtype_of(column.dtype) if column.kind == "ragged" else torch.uint8
    total = int(lengths.sum())
    if data.dtype != dtype or data.ndim != 1 or total != data.numel():
        raise ValueError(f"{data.numel()} {short_name(data.dtype)} for {total}")
    if count and (int(first.min()) < 0 or int(lengths.max()) > total or int(lengths.min()) < 0):
        raise ValueError("a length that is none")


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
    columns = [*zip(*sources, strict=True)]
    return _assemble(schema, iter(columns), order, accelerator)


def _assemble(schema: Schema, columns: Any, order: Tensor, accelerator: torch.device) -> Any:
    if isinstance(schema, Group):
        children = [_assemble(child, columns, order, accelerator) for child in schema.children]
        if schema.kind == "tuple":
            return tuple(children)
        by_key = dict(zip(schema.keys, children, strict=True))
        if schema.kind == "dict":
            return by_key
        return LazyList(functools.partial(records_of, by_key, len(order)), len(order))
    device = accelerator if schema.on_accelerator else torch.device("cpu")
    parts = [next(columns, ()) for _ in range(parts_in(schema))]
    if schema.kind == "rows":
        rows = [row.to(device) for row in parts[0]]
        empty = torch.empty((0, *schema.shape), dtype=dtype_of(schema.dtype), device=device)
        return torch.cat(rows or [empty])[order.to(device)]
    if schema.kind in _NUMBERS:
        numbers = [row.to("cpu", _NUMBERS[schema.kind]) for row in parts[0]]
        return torch.cat(numbers)[order].tolist() if numbers else []
    if schema.kind == "empty":
        return []
    make: Callable[[], list[Any]]
    if schema.kind == "items":
        make = functools.partial(objects_of, parts[0], order, accelerator)
    elif schema.kind == "text":
        make = functools.partial(texts_of, [*zip(*parts, strict=True)], order)
    else:
        make = functools.partial(tensors_of, [*zip(*parts, strict=True)], order, device)
    return LazyList(make, len(order))


def bytes_by_row(column: Column, values: Any, rows: Tensor) -> list[bytes]:
    """Return the bytes of some samples, which are equal where the samples are."""
    if column.kind == "items":
        return [to_bytes(serialize(values[row])) for row in rows.tolist()]
    parts = parts_of(column, values, rows)
    data = parts[-1].cpu().contiguous().reshape(-1)
    data = data.long() if column.kind == "int" else data  # whatever the others need
    whole = to_bytes(data.view(torch.uint8))
    heads: Iterable[Any] = itertools.repeat("")
    if len(parts) == 1:
        lengths = torch.full((len(rows),), data.numel() // len(rows))
    else:
        lengths = lengths_in(parts[0])
        heads = parts[0].tolist() if column.kind == "ragged" else heads
    stops = (lengths.cumsum(0) * data.element_size()).tolist()
    each = zip(heads, [0, *stops[:-1]], stops, strict=False)
    return [repr(head).encode() + whole[start:stop] for head, start, stop in each]
