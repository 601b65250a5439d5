"""What samples are made of: the columns of a tree, as ranks send them, and back. Pure.

A tensor is a column with one row a sample, a list is a column with one item a sample. Dicts and
tuples hold columns. The same tree with empty columns is its template: it tells dtypes, the shapes
of rows and devices. Rows of a tensor travel as a tensor, a list as its bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.buckets import short_name
from distmetrics.collectives.header import check_sendable, tensor_of
from distmetrics.collectives.wire import DEEPEST, deserialize, serialize
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import InputError, InputTypeError
from distmetrics.message import reading


def read_tree(tree: Any, count: int, path: str = "", depth: int = 0) -> Any:
    """Return a tree of samples in dicts, tuples, tensors and lists, or raise InputError."""
    where = path or "the tree"
    if depth > DEEPEST:
        raise InputTypeError(f"{where[:100]}… is nested over {DEEPEST} deep, or contains itself")
    if isinstance(tree, LazyList):
        tree = [*tree]
    elif hasattr(tree, "__array__"):  # NumPy's, say
        tree = tensor_of(tree, where)
    if isinstance(tree, dict):
        if not {*map(type, tree)} <= {str, int}:
            raise InputTypeError(f"{where} is a dict whose keys are not all strings or integers")
        below = functools.partial(read_tree, count=count, depth=depth + 1)
        return {key: below(child, path=f"{path}[{key!r}]") for key, child in tree.items()}
    if type(tree) is tuple:
        return tuple(read_tree(dict(enumerate(tree)), count, path, depth).values())
    if isinstance(tree, Tensor):
        tree = tree.detach()
        check_sendable(tree, where)
    if type(tree) not in (Tensor, list):
        raise InputTypeError(
            f"{where} is a {type(tree).__name__}, which is no column of samples",
            do="pass tensors with one row a sample and lists with one item a sample, in dicts and "
            "tuples.",
        )
    length = len(tree) if isinstance(tree, list) or tree.ndim else None
    if length != count:
        raise InputError(
            f"{where} has the length {length}, and there are {count} ids",
            do="give each id one row of a tensor, or one item of a list; put several columns into "
            "a dict or a tuple, not into a list.",
        )
    return tree


def mapped(tree: Any, make: Callable[[str, Any], Any], path: str = "") -> Any:
    """Return a tree with ``make(path, column)`` in place of each column."""
    if isinstance(tree, dict):
        return {key: mapped(child, make, f"{path}[{key!r}]") for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(mapped(dict(enumerate(tree)), make, path).values())
    return make(path, tree)


def columns_of(tree: Any) -> dict[str, Any]:
    """Return the columns of a tree by path, in the order in which they travel.

    >>> columns_of({"texts": ["a"], "pair": ([1], [2])})
    {"['pair'][0]": [1], "['pair'][1]": [2], "['texts']": ['a']}
    """
    columns: dict[str, Any] = {}
    mapped(tree, columns.__setitem__)
    return dict(sorted(columns.items()))


def kind_of(column: Any) -> str:
    """Describe a column as ranks compare it.

    >>> kind_of(torch.zeros(5, 3)), kind_of(["a"])
    ('float32[n, 3]', 'list')
    """
    if isinstance(column, list):
        return "list"
    return f"{short_name(column.dtype)}[{', '.join(map(str, ('n', *column.shape[1:])))}]"


def take(column: Any, rows: Tensor) -> Any:
    """Return some rows of a column, which ascend."""
    if isinstance(column, Tensor):
        return column[rows.to(column.device)]
    return [*map(column.__getitem__, rows.tolist())]


def sizes_of(column: Any, nbytes: int) -> Tensor:
    """Return how many bytes each item takes, about: of strings their letters, else the mean."""
    if isinstance(column, list) and {*map(type, column)} == {str}:
        return torch.tensor([*map(len, column)])
    return torch.full((len(column),), nbytes // len(column))


def pack(column: Any) -> Tensor:
    """Return a column as it travels; raise InputTypeError for a list of what is no data."""
    return column if isinstance(column, Tensor) else serialize(column)


def read_share(empties: Sequence[Any], counts: Sequence[int], rank: int, share: Any) -> list[Any]:
    """Return the forms of the columns that a rank has sent, none if no samples are its own."""
    count = counts[rank]
    if count == 0:
        return []
    for empty, form in zip(empties, share, strict=True):
        if isinstance(empty, Tensor) and (len(form), kind_of(form)) != (count, kind_of(empty)):
            raise ValueError(f"{len(form)} rows of {kind_of(form)}")
    return [*share]


def joined(empty: Any, forms: Sequence[Any], order: Tensor, comm: Communicator) -> Any:
    """Return a column of samples, of which ``order`` says the places among those of all forms."""
    if isinstance(empty, Tensor):
        rows = torch.cat([empty, *[form.to(empty.device) for form in forms]])
        return rows[order.to(empty.device)]
    make = functools.partial(_items, forms, order, comm.device)
    return make() if comm.hands_over else LazyList(len(order), make)


def _items(forms: Sequence[Any], order: Tensor, accelerator: torch.device) -> list[Any]:
    with reading("its samples"):
        parts = [deserialize(form, accelerator=accelerator) for form in forms]
        items = [*chain.from_iterable(parts)]
        if len(items) != len(order):
            raise ValueError(f"{len(items)} samples of {len(order)}")
    return [*map(items.__getitem__, order.tolist())]


class LazyList(Sequence[Any]):
    """A read-only list, equal to a list of the same items, which are made when they are first read.

    Making a hundred thousand strings takes longer than sending them, and often nobody reads them:
    on the ranks that do not compute the score, say.

    >>> LazyList(2, lambda: ["b", "a"]) == ["b", "a"]
    True
    """

    def __init__(self, count: int, make: Callable[[], list[Any]]) -> None:
        self._count = count
        self._source: list[Any] | Callable[[], list[Any]] = make

    @property
    def _items(self) -> list[Any]:
        source = self._source  # another thread may read too
        if not isinstance(source, list):
            source = self._source = source()
        return source

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | LazyList):
            return NotImplemented
        return self._items == [*other]

    def __repr__(self) -> str:
        return repr(self._items)
