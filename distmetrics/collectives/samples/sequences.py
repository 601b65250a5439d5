"""Lists whose items are made when they are first read.

Making a hundred thousand strings takes longer than sending them, and often nobody reads them: on
the ranks that do not compute the score, say. So what has come is kept as bytes until then.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.pack import to_bytes
from distmetrics.collectives.reading import reading
from distmetrics.collectives.serialize import deserialize

_SHOWN = 3  # items of a long list
Joined = tuple[Tensor, Tensor]  # lengths of items, or their shapes; and all of them joined


class LazyList(Sequence[Any]):
    """A read-only list, equal to a list of the same items.

    Args:
        make: returns the items; called when they are first read.
        count: how many there are.

    >>> LazyList(lambda: ["a", "b"], 2) == ["a", "b"]
    True
    """

    def __init__(self, make: Callable[[], Sequence[Any]], count: int) -> None:
        self._make: Callable[[], Sequence[Any]] | None = make
        self._count = count

    @functools.cached_property
    def _items(self) -> Sequence[Any]:
        assert self._make is not None
        with reading("its samples"):
            items = self._make()
        if len(items) != self._count:
            raise AssertionError(f"{len(items)} items of {self._count}")
        self._make = None  # and what the items were made of
        return items

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | LazyList):
            return NotImplemented
        return len(self) == len(other) and all(map(_same, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = [repr(item) for item in self[:_SHOWN]]
        more = [f"… ({len(self)})"] if len(self) > _SHOWN else []
        return f"[{', '.join(shown + more)}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([*self._items],)


def _same(one: Any, other: Any) -> bool:
    """True if two items are equal; tensors, also within items, where all their elements are."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        both = isinstance(one, Tensor) and isinstance(other, Tensor)
        return both and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | LazyList) and isinstance(other, list | tuple | LazyList):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def lengths_in(first: Tensor) -> Tensor:
    """Return how many elements each item has, from lengths or shapes."""
    wide = first.to("cpu", torch.int64)
    return wide.prod(1) if wide.ndim == 2 else wide


def texts_of(sources: Sequence[Joined], order: Tensor) -> list[str]:
    """Return strings from their bytes.

    Args:
        sources: the strings of each.
        order: for each item, its place among those of all sources.
    """
    texts: list[str] = []
    for sizes, data in sources:
        stops = lengths_in(sizes).cumsum(0).tolist()
        run = to_bytes(data)
        spans = map(slice, [0, *stops[:-1]], stops)
        if run.isascii():
            texts += map(run.decode().__getitem__, spans)
        else:
            texts += [run[span].decode("utf-8", "surrogatepass") for span in spans]
    return in_order(texts, order)


def tensors_of(sources: Sequence[Joined], order: Tensor, device: torch.device) -> list[Tensor]:
    """Return tensors of different shape, each of its own memory."""
    tensors: list[Tensor] = []
    for shapes, data in sources:
        flat = data.to(device).split_with_sizes(lengths_in(shapes).tolist())
        each = zip(flat, shapes.tolist(), strict=True)
        tensors += [part.clone().reshape(shape) for part, shape in each]
    return in_order(tensors, order)


def objects_of(runs: Sequence[Tensor], order: Tensor, accelerator: torch.device) -> list[Any]:
    """Return items of any kind; each run is a list of some."""
    objects: list[Any] = []
    for run in runs:
        objects += deserialize(run, accelerator=accelerator)
    return in_order(objects, order)


def records_of(columns: Mapping[str | int, Sequence[Any]], count: int) -> list[Any]:
    """Return dicts from a list for each key."""
    if not columns:
        return [{} for _ in range(count)]
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def in_order(items: list[Any], order: Tensor) -> list[Any]:
    """Return the items at some places."""
    places = order.tolist()
    if len(places) < 2:
        return [items[place] for place in places]
    return [*operator.itemgetter(*places)(items)]
