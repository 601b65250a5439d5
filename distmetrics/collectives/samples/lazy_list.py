"""Lists whose items are made when they are first read.

Making a hundred thousand strings takes longer than sending them, and often nobody reads them: on
the ranks that do not compute the score, say. So what has come is kept as bytes until then.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from distmetrics.collectives.message import reading

_SHOWN = 3  # items of a long list


class LazyList(Sequence[Any]):
    """A read-only list, equal to a list of the same items.

    Args:
        make: returns the items; called when they are first read.
        count: how many there are.

    >>> LazyList(lambda: ["a", "b"], 2) == ["a", "b"]
    True
    """

    def __init__(
        self,
        make: Callable[[], list[Any]],
        count: int,
    ) -> None:
        self._make: Callable[[], list[Any]] | None = make
        self._count = count

    @functools.cached_property
    def _items(self) -> list[Any]:
        assert self._make is not None
        with reading("its samples"):
            items = self._make()
        self._make = None  # and what the items were made of
        return items

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | LazyList):
            return NotImplemented
        return len(self) == len(other) and self._items == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = [repr(item) for item in self[:_SHOWN]]
        more = [f"… ({len(self)})"] if len(self) > _SHOWN else []
        return f"[{', '.join(shown + more)}]"

    def __iter__(self) -> Any:
        return iter(self._items)


def read(tree: Any) -> Any:
    """Return a tree with a plain list for each lazy one, as it can be sent.

    >>> read({"text": (LazyList(lambda: ["a", "b"], 2),)})
    {'text': (['a', 'b'],)}
    """
    if isinstance(tree, dict):
        return {key: read(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple([read(value) for value in tree])
    return [*tree] if isinstance(tree, LazyList) else tree


def in_order(items: list[Any], order: Tensor) -> list[Any]:
    """Return all items in another order.

    Raises:
        ValueError: there are more or fewer.
    """
    if len(items) != len(order):
        raise ValueError(f"{len(items)} samples of {len(order)}")
    places = order.tolist()
    if len(places) < 2:
        return items
    return [*operator.itemgetter(*places)(items)]
