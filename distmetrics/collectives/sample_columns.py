"""What samples are made of: the columns of a tree, as ranks describe and send them, and back. Pure.

A tensor is a column with one row a sample, a list is a column with one item a sample. Dicts and
tuples hold columns. Rows of a tensor travel as a tensor. A list travels as one tensor if its items
are numbers, as joined bytes if they are strings, as shapes and elements if they are tensors, as a
list for each key if they are dicts; else each item is serialized. The form tells which, so lists of
different ranks may differ.
"""

from __future__ import annotations

import array
import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.buckets import (
    LeafSpec,
    dtype_of,
    short_name,
    unsendable,
)
from distmetrics.collectives.header import check_sendable, from_number_or_array
from distmetrics.collectives.wire import DEEPEST, deserialize, serialize
from distmetrics.errors import InputError, InputTypeError
from distmetrics.message import Message, Shape, reading

_SHOWN = 3  # items of a long list
_SEPARATOR = "\0"  # between the strings of a column; a column with one inside travels as items
_TEXT = ("utf-8", "surrogatepass")  # what a Python string may hold
_NUMBERS = {int: ("q", torch.int64), float: ("d", torch.float64), bool: ("b", torch.bool)}
_NARROW = (torch.uint8, torch.int16, torch.int32)
_BLOCK = 4096  # items of a list in a form


class Rows(Message, frozen=True, tag="rows"):
    """A tensor: its dtype, the shape of a row, and whether it is on an accelerator."""

    dtype: str
    shape: Shape
    on_accelerator: bool

    def __post_init__(self) -> None:
        self.of(0)

    def of(self, count: int) -> LeafSpec:
        """Return what ``count`` rows are."""
        return LeafSpec("", self.dtype, (count, *self.shape))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, ('n', *self.shape)))}]"


class Items(Message, frozen=True, tag="items"):
    """A list."""

    def __str__(self) -> str:
        return "list"


class Columns(Message, frozen=True, tag="columns"):
    """A dict, or a tuple with the keys 0, 1, 2 and so on.

    >>> columns = Rows("float32", (3,), False), Items()
    >>> str(Columns(("boxes", "names"), columns)), str(Columns((0, 1), columns, is_tuple=True))
    ("{'boxes': float32[n, 3], 'names': list}", '(float32[n, 3], list)')
    """

    keys: tuple[str | int, ...]
    children: tuple[Rows | Items | Columns, ...]
    is_tuple: bool = False

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.children):
            raise ValueError(f"{len(self.keys)} keys of {len(self.children)} columns")
        if self.is_tuple and self.keys != tuple(range(len(self.keys))):
            raise ValueError(f"a tuple with the keys {self.keys}")
        level: Sequence[Schema] = [self]
        for _ in range(DEEPEST + 1):
            level = [x for each in level if isinstance(each, Columns) for x in each.children]
        if level:
            raise ValueError("columns nested too deep")

    def __str__(self) -> str:
        if self.is_tuple:
            return f"({', '.join(map(str, self.children))})"
        named = zip(self.keys, self.children, strict=True)
        return f"{{{', '.join(sorted(f'{key!r}: {child}' for key, child in named))}}}"


Schema = Rows | Items | Columns


def describe(
    tree: Any, count: int, columns: dict[str, Any], path: str = "", depth: int = 0
) -> Schema:
    """Return what a tree of ``count`` samples is made of; put its columns by path in ``columns``.

    Raises:
        InputTypeError: something in it is not a column.
        InputError: a column has another length.
    """
    tree = _plain(tree)
    where = path or "the tree"
    if depth > DEEPEST:
        raise InputTypeError(f"{where} is nested over {DEEPEST} deep, or contains itself")
    is_tuple = type(tree) is tuple
    if is_tuple or isinstance(tree, dict):
        keys = tuple(range(len(tree)) if is_tuple else tree)
        if any(type(key) not in (str, int) for key in keys):
            raise InputTypeError(f"{where} is a dict whose keys are not all strings or integers")
        below = functools.partial(describe, count=count, columns=columns, depth=depth + 1)
        children = [below(tree[key], path=f"{path}[{key!r}]") for key in keys]
        return Columns(keys, tuple(children), is_tuple)
    if not isinstance(tree, Tensor | list):
        raise InputTypeError(
            f"{where} is a {type(tree).__name__}, which is no column of samples",
            do="pass tensors with one row a sample and lists with one item a sample, in dicts and "
            "tuples.",
        )
    if isinstance(tree, Tensor):
        check_sendable(tree, where)
        what, sizes = "a tensor", [*tree.shape[:1]]
    else:
        what, sizes = "a list", [len(tree)]
    if sizes != [count]:
        size = f"of length {sizes[0]}" if sizes else "without dimensions"
        raise InputError(
            f"{where} is {what} {size}, and there are {count} ids",
            do="give each id one row of a tensor, or one item of a list; put several columns into "
            "a dict or a tuple, not into a list.",
        )
    columns[path] = tree
    if isinstance(tree, list):
        return Items()
    return Rows(short_name(tree.dtype), tuple(tree.shape[1:]), not tree.is_cpu)


def _plain(value: Any) -> Any:
    """Return a list for a sequence, a tensor or a list for an array; else the value itself."""
    if isinstance(value, Tensor | list | tuple | dict | str | bytes):
        return value
    if hasattr(value, "__array__") and hasattr(value, "tolist"):
        try:
            return from_number_or_array(value)
        except TypeError:  # an array of strings, say
            return value.tolist()
    return [*value] if isinstance(value, Sequence) else value


def columns_of(schema: Schema, path: str = "") -> Iterator[tuple[str, Rows | Items]]:
    """Yield every column with its path, in the order in which they travel."""
    if not isinstance(schema, Columns):
        yield path, schema
        return
    for key, child in zip(schema.keys, schema.children, strict=True):
        yield from columns_of(child, f"{path}[{key!r}]")


def sizes_of(values: Any) -> Tensor:
    """Return how many bytes each sample of a column takes, about."""
    if isinstance(values, Tensor):
        return torch.full((len(values),), values.nbytes // len(values))
    return torch.tensor([*map(size_of, values)], dtype=torch.int64)


def size_of(value: Any) -> int:
    """Return how many bytes a value takes, about."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(*_TEXT))
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return sum(map(size_of, value))
    return len(value) if isinstance(value, bytes) else getattr(value, "nbytes", 8)


def narrowed(numbers: Tensor) -> Tensor:
    """Return integers in the smallest dtype that holds them all.

    >>> narrowed(torch.tensor([3, 255])).dtype, narrowed(torch.tensor([-1])).dtype
    (torch.uint8, torch.int16)
    """
    for dtype in _NARROW:
        small = numbers.to(dtype)
        if torch.equal(small.to(numbers.dtype), numbers):
            return small
    return numbers


def pack(values: Any, rows: Tensor | None = None) -> Iterator[Any]:
    """Yield a column, or some rows of it, in forms that can be serialized.

    Raises:
        InputTypeError: an item cannot be sent.

    >>> [form] = pack(["a", "b", "c"], torch.tensor([0, 2]))
    >>> unpack(form, torch.device("cpu"))
    ['a', 'c']
    """
    if isinstance(values, Tensor):
        values = values.detach()
        yield values if rows is None else values[rows.to(values.device)]
        return
    if rows is not None:
        values = [*map(values.__getitem__, rows.tolist())]
    for start in range(0, len(values), _BLOCK):
        yield _form(values[start : start + _BLOCK])


def _form(items: list[Any]) -> Any:
    keys = items[0].keys() if type(items[0]) is dict else ()
    if keys and all(type(item) is dict and item.keys() == keys for item in items):
        return ["records", [*keys], *[_simple([item[key] for item in items]) for key in keys]]
    return _simple(items)


def _simple(items: list[Any]) -> Any:
    """Return the form of items that are not dicts."""
    first = items[0]
    kinds = set(map(type, items))
    if kinds == {str}:
        joined = _SEPARATOR.join(items)
        if joined.count(_SEPARATOR) == len(items) - 1:
            return ["text", joined.encode(*_TEXT)]
    elif kinds == {Tensor}:
        alike = {(x.dtype, x.ndim, x.device, x.layout, x.is_nested) for x in items}
        if len(alike) == 1 and not any(unsendable(first.dtype, first.layout, first.is_meta)):
            shapes = torch.tensor([x.shape for x in items], dtype=torch.int64)
            return ["tensors", narrowed(shapes), torch.cat([x.detach().reshape(-1) for x in items])]
    elif len(kinds) == 1 and type(first) in _NUMBERS:
        code, dtype = _NUMBERS[type(first)]
        with contextlib.suppress(OverflowError):  # of more than 64 bits
            numbers = torch.frombuffer(array.array(code, items), dtype=dtype)
            return narrowed(numbers) if dtype == torch.int64 else numbers
    return ["items", serialize(items)]


def unpack(form: Any, accelerator: torch.device) -> list[Any]:
    """Return the items of a list; tensors have memory of their own. Raises if it is malformed."""
    match form:
        case Tensor():
            return [*form.tolist()]
        case "records", keys, *columns:
            rows = zip(*[unpack(column, accelerator) for column in columns], strict=True)
            return [dict(zip(keys, row, strict=True)) for row in rows]
        case "text", bytes(data):
            return data.decode(*_TEXT).split(_SEPARATOR)
        case "tensors", shapes, joined:
            shapes = shapes.tolist()
            parts = joined.split([math.prod(shape) for shape in shapes])
            return [x.clone().reshape(shape) for x, shape in zip(parts, shapes, strict=True)]
        case "items", run:
            return [*deserialize(run, accelerator=accelerator)]
    raise ValueError("a list of an unknown form")


def read_columns(
    schema: Schema, rows: Sequence[Tensor], rank: int, _: Any, share: Any
) -> list[Any]:
    """Return the columns that a rank has sent, none if no rows are its own.

    Raises if they are malformed.
    """
    count = len(rows[rank])
    if count == 0:
        return []
    for (path, column), forms in zip(columns_of(schema), share, strict=True):
        if isinstance(column, Rows):
            (own,) = forms
            if LeafSpec.of("", own) != column.of(count):
                raise ValueError(f"{LeafSpec.of(path, own)} as {column.of(count)}")
    return [*share]


def assemble(
    schema: Schema,
    columns: Iterator[Sequence[Any]],
    order: Tensor,
    accelerator: torch.device,
    *,
    is_lazy: bool = True,
) -> Any:
    """Return the tree of samples.

    Args:
        schema: of the tree.
        columns: the forms of each column.
        order: for each sample of the result, its place among those of all ranks, joined.
        accelerator: where tensors go that were on one.
        is_lazy: whether texts, tensors and dicts are made when they are read.
    """
    if isinstance(schema, Columns):
        rest = functools.partial(assemble, is_lazy=is_lazy)
        children = [rest(child, columns, order, accelerator) for child in schema.children]
        return tuple(children) if schema.is_tuple else dict(zip(schema.keys, children, strict=True))
    forms = next(columns)
    if isinstance(schema, Items):
        items = LazyList(forms, order, accelerator)
        return items if is_lazy and not all(isinstance(x, Tensor) for x in forms) else [*items]
    device = accelerator if schema.on_accelerator else torch.device("cpu")
    empty = torch.empty((0, *schema.shape), dtype=dtype_of(schema.dtype), device=device)
    return torch.cat([empty, *[rows.to(device) for rows in forms]])[order.to(device)]


class LazyList(Sequence[Any]):
    """A read-only list, equal to a list of the same items, which are made when they are first read.

    Making a hundred thousand strings takes longer than sending them, and often nobody reads them:
    on the ranks that do not compute the score, say.

    >>> LazyList([*pack(["a", "b"])], torch.tensor([1, 0]), torch.device("cpu")) == ["b", "a"]
    True
    """

    def __init__(self, forms: Sequence[Any], order: Tensor, accelerator: torch.device) -> None:
        self._forms, self._order, self._accelerator = forms, order, accelerator
        self._count = len(order)

    @functools.cached_property
    def _items(self) -> list[Any]:
        with reading("its samples"):
            items = [item for form in self._forms for item in unpack(form, self._accelerator)]
            if len(items) != self._count:
                raise ValueError(f"{len(items)} samples of {self._count}")
        ordered = [*map(items.__getitem__, self._order.tolist())]
        self._forms, self._order = (), self._order[:0]  # frees them
        return ordered

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
        shown = [repr(item) for item in self[:_SHOWN]]
        more = [f"… ({len(self)})"] if len(self) > _SHOWN else []
        return f"[{', '.join(shown + more)}]"
