"""What samples are made of: the columns of a tree, as ranks send them, and back. Pure.

A tensor is a column with one row a sample, a list is a column with one item a sample. Dicts and
tuples hold columns. The template of a tree has an empty tensor in place of each tensor, which tells
dtype, shape of rows and device, and ``LIST`` in place of each list. Rows of a tensor travel as a
tensor, a list as its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

LIST = "list"


def n_ids(count: int, kind: str = "") -> str:
    """Return how many ids there are, for an error."""
    return f"{count} {kind}id{'s' * (count != 1)}"


def split(tree: Any, count: int, columns: dict[str, Any], path: str = "", depth: int = 0) -> Any:
    """Put a tree's columns into ``columns`` by path; return its template, or raise InputError."""
    where = path or "the tree"
    if depth > DEEPEST:
        raise InputTypeError(f"{where[:100]}… is nested over {DEEPEST} deep, or contains itself")
    if type(tree) is tuple:
        return tuple(split(dict(enumerate(tree)), count, columns, path, depth).values())
    if isinstance(tree, dict):
        if not {*map(type, tree)} <= {str, int}:
            raise InputTypeError(f"{where} is a dict whose keys are not all strings or integers")
        return {
            key: split(child, count, columns, f"{path}[{key!r}]", depth + 1)
            for key, child in tree.items()
        }
    if isinstance(tree, LazyList):
        tree = [*tree]
    elif hasattr(tree, "__array__"):  # a tensor, or NumPy's
        tree = tensor_of(tree, where).detach()
        check_sendable(tree, where)
        tree = tree if tree.ndim else tree[None]
    if type(tree) not in (Tensor, list):
        raise InputTypeError(
            f"{where} is a {type(tree).__name__}, which is no column of samples",
            do="pass tensors with one row a sample and lists with one item a sample, in dicts and "
            "tuples.",
        )
    if len(tree) != count:
        raise InputError(
            f"{where} has the length {len(tree)}, for {n_ids(count)}",
            do="give each id one row of a tensor, or one item of a list; put several columns into "
            "a dict or a tuple, not into a list.",
        )
    columns[path] = tree
    return LIST if isinstance(tree, list) else tree[:0]


def kind_of(column: Any) -> str:
    """Describe a column as ranks compare it.

    >>> kind_of(torch.zeros(5, 3)), kind_of(["a"])
    ('float32[n, 3]', 'list')
    """
    if isinstance(column, list):
        return LIST
    return f"{short_name(column.dtype)}[{', '.join(map(str, ('n', *column.shape[1:])))}]"


def take(column: Any, rows: Tensor) -> Any:
    """Return some rows of a column."""
    if isinstance(column, Tensor):
        return column[rows.to(column.device)]
    return [*map(column.__getitem__, rows.tolist())]


def pack(column: Any, path: str) -> Tensor:
    """Return a column as it travels; raise InputTypeError for a list of what is no data."""
    try:
        return column if isinstance(column, Tensor) else serialize(column)
    except InputTypeError as error:
        raise InputTypeError(
            f"{path or 'the tree'}: {error.what}",
            do="keep numbers, strings, bytes, tensors and arrays, and lists, tuples, sets and "
            "dicts of such.",
        ) from error


def joined(empty: Any, forms: Sequence[Tensor], order: Tensor, comm: Communicator) -> Any:
    """Return a column of samples, of which ``order`` says the places among those of all forms."""
    if not isinstance(empty, Tensor):
        items = LazyList(forms, order, comm.device)
        return [*items] if comm.hands_over else items
    with reading("its samples"):
        rows = torch.cat([empty, *[form.to(empty) for form in forms]])
        return _in_order(rows, order)


def _in_order(items: Any, order: Tensor) -> Any:
    if len(items) != len(order):
        raise ValueError(f"{len(items)} samples of {len(order)}")
    return take(items, order)


class LazyList(Sequence[Any]):
    """A read-only list, equal to a list of the same items, which are made when they are first read.

    Making a hundred thousand strings takes longer than sending them, and often nobody reads them.
    """

    def __init__(self, forms: Sequence[Tensor], order: Tensor, accelerator: torch.device) -> None:
        self._order, self._accelerator = order, accelerator
        self._source: list[Any] | tuple[Tensor, ...] = (*forms,)

    @property
    def _items(self) -> list[Any]:
        source = self._source  # another thread may read too
        if isinstance(source, tuple):
            with reading("its samples"):
                lists = [deserialize(form, accelerator=self._accelerator) for form in source]
                made: list[Any] = _in_order([*chain.from_iterable(lists)], self._order)
            source = self._source = made
        return source

    def __len__(self) -> int:
        return len(self._order)

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
