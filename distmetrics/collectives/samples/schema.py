"""What a rank's samples are made of: the columns of its tree, as text that ranks compare. Pure.

A tensor is a column, one row a sample; so is a list, one item a sample. Dicts and tuples hold
columns, however deep. A list's items may be anything that is data. Where all ranks have strings in
it, or numbers, or tensors of one dtype, or dicts with the same keys, they travel as such; else each
item travels by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from torch import Tensor

from distmetrics.collectives.buckets import LeafSpec, short_name, unsendable
from distmetrics.collectives.leaves import check_sendable, from_number_or_array
from distmetrics.collectives.wire import DEEPEST
from distmetrics.errors import InputError, InputTypeError

# Columns that come from lists, so that a list of another rank may hold something else.
_OF_LISTS = ("int", "float", "bool", "text", "ragged", "items", "empty")
_KINDS = ("rows", *_OF_LISTS)
_NUMBERS = {int: "int", float: "float", bool: "bool"}
SEPARATOR = "\0"  # between the texts of a column; texts that have it travel as items
_INT64 = range(-(1 << 63), 1 << 63)


class Column(NamedTuple):
    """One value for each sample.

    Attributes:
        kind: "rows" of a tensor, or what the items of a list are: "int", "float", "bool", "text",
            tensors of different shape ("ragged"), "items" of any kind; "empty" where there are
            none.
        dtype: of rows and ragged tensors.
        shape: of a row; of a ragged tensor as many ones as it has dimensions.
        on_accelerator: whether tensors are on one.
    """

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    on_accelerator: bool = False


class Group(NamedTuple):
    """Columns under keys.

    Attributes:
        kind: "dict", "tuple", or "records": a list with one dict for each sample.
        keys: of a tuple, 0, 1, 2, …
        children: one for each key.
    """

    kind: str
    keys: tuple[str | int, ...]
    children: tuple[Any, ...]

    def values(self, tree: Any) -> list[Any]:
        """Return what the tree has under each key; of records, a list for each."""
        if self.kind == "records":
            return [[record[key] for record in tree] for key in self.keys]
        return [tree[key] for key in self.keys]


Schema = Column | Group


def plain(value: Any) -> Any:
    """Return a list for a sequence, a tensor or a list for an array; else the value itself."""
    if isinstance(value, Tensor | list | tuple | dict | str | bytes):
        return value
    if hasattr(value, "__array__") and hasattr(value, "tolist"):
        try:
            return from_number_or_array(value)
        except TypeError:  # an array of strings, say
            return value.tolist()
    return [*value] if isinstance(value, Sequence) else value


def describe(
    tree: Any,
    count: int,
    path: str = "",
    depth: int = 0,
) -> Schema:
    """Return what a tree of ``count`` samples is made of.

    Raises:
        InputTypeError: something in it is no column.
        InputError: a column has another length.
    """
    tree = plain(tree)
    where = path or "the tree"
    if depth > DEEPEST:
        raise InputTypeError(f"{where} is nested over {DEEPEST} deep, or contains itself")
    if isinstance(tree, dict):
        keys = tuple(tree)
        if not _are_names(keys):
            raise InputTypeError(f"{where} is a dict whose keys are not all strings or integers")
        return _group("dict", keys, tree, count, path, depth)
    if type(tree) is tuple:
        return _group("tuple", tuple(range(len(tree))), tree, count, path, depth)
    if isinstance(tree, Tensor):
        check_sendable(tree, where)
        _check_length(where, "a tensor", tree.shape[0] if tree.ndim else None, count)
        return Column("rows", short_name(tree.dtype), tuple(tree.shape[1:]), not tree.is_cpu)
    if not isinstance(tree, list):
        raise InputTypeError(
            f"{where} is a {type(tree).__name__}, which is no column of samples",
            do="pass tensors with one row a sample and lists with one item a sample, in dicts and "
            "tuples.",
        )
    _check_length(where, "a list", len(tree), count)
    return _of_list(tree, depth)


def _group(
    kind: str,
    keys: tuple[str | int, ...],
    tree: Any,
    count: int,
    path: str,
    depth: int,
) -> Group:
    children = [describe(tree[key], count, f"{path}[{key!r}]", depth + 1) for key in keys]
    return Group(kind, keys, tuple(children))


def _check_length(
    where: str,
    what: str,
    length: int | None,
    count: int,
) -> None:
    if length == count:
        return
    size = "without dimensions" if length is None else f"of length {length}"
    raise InputError(
        f"{where} is {what} {size}, and there are {count} ids",
        do="give each id one row of a tensor, or one item of a list; put several columns into a "
        "dict or a tuple, not into a list.",
    )


def _of_list(items: list[Any], depth: int) -> Schema:
    """Return the kind that all items have."""
    kinds = set(map(type, items))
    if not items:
        return Column("empty")
    if kinds == {str}:
        separators = SEPARATOR.join(items).count(SEPARATOR)
        return Column("text" if separators == len(items) - 1 else "items")
    if len(kinds) == 1 and kinds <= _NUMBERS.keys():
        is_small = int not in kinds or (min(items) in _INT64 and max(items) in _INT64)
        return Column(_NUMBERS[kinds.pop()] if is_small else "items")
    if kinds == {Tensor}:
        return _of_tensors(items)
    if kinds == {dict} and depth < DEEPEST:
        return _of_dicts(items, depth)
    return Column("items")


def _of_dicts(
    items: list[dict[Any, Any]],
    depth: int,
) -> Schema:
    known = items[0].keys()
    keys = tuple(known)
    if not _are_names(keys) or any(item.keys() != known for item in items):
        return Column("items")
    group = Group("records", keys, ())
    children = [_of_list(values, depth + 1) for values in group.values(items)]
    return group._replace(children=tuple(children))


def _are_names(keys: Sequence[Any]) -> bool:
    return all(type(key) in (str, int) for key in keys)


def _of_tensors(items: list[Tensor]) -> Column:
    first = items[0]
    alike = {(x.dtype, x.ndim, x.device, x.layout, x.is_nested) for x in items}
    is_plain = not any(unsendable(first.dtype, first.layout, first.is_meta))
    if not is_plain or first.is_nested or len(alike) > 1:
        return Column("items")
    return Column("ragged", short_name(first.dtype), (1,) * first.ndim, not first.is_cpu)


def read_schema(form: Any, depth: int = 0) -> Schema:
    """Return what a peer has told of its columns; raise anything for what is none."""
    kind, first, second, *rest = form
    if depth > DEEPEST:
        raise ValueError("columns nested too deep")
    if kind in _KINDS:
        (on_accelerator,) = rest
        spec = msgspec.convert(["", first or "uint8", second or ()], LeafSpec)
        return Column(
            kind, spec.dtype if first else "", spec.shape if first else (), bool(on_accelerator)
        )
    if kind not in ("dict", "tuple", "records") or rest or len(first) != len(second):
        raise ValueError(f"columns of the kind {kind!r}")
    keys = [key if type(key) is int else str(key) for key in first]
    children = [read_schema(child, depth + 1) for child in second]
    return Group(kind, tuple(keys), tuple(children))


def merge(one: Schema, other: Schema) -> Schema:
    """Return the schema that fits the samples of two ranks, whose structures are the same.

    Raises:
        ValueError: there is none.
    """
    if one == other:
        return one
    if isinstance(one, Group) and isinstance(other, Group) and one.kind == other.kind:
        theirs = dict(zip(other.keys, other.children, strict=True))
        if theirs.keys() == set(one.keys):
            children = []
            for key, child in zip(one.keys, one.children, strict=True):
                children.append(merge(child, theirs[key]))
            return one._replace(children=tuple(children))
    if _is_list(one) and _is_list(other):
        return Column("items")
    if isinstance(one, Column) and isinstance(other, Column) and one[:3] == other[:3]:
        return one
    raise ValueError("columns that do not go together")


def _is_list(schema: Schema) -> bool:
    return schema.kind == "records" or schema.kind in _OF_LISTS


def columns_of(schema: Schema, path: str = "") -> Iterator[tuple[str, Column]]:
    """Yield every column with its path, in the order in which they travel."""
    if isinstance(schema, Column):
        yield path, schema
        return
    for key, child in zip(schema.keys, schema.children, strict=True):
        yield from columns_of(child, f"{path}[{key!r}]")


def values_of(schema: Schema, tree: Any) -> Iterator[Any]:
    """Yield the values of every column of a tree, in the same order."""
    tree = plain(tree)
    if isinstance(schema, Column):
        yield tree
        return
    for child, value in zip(schema.children, schema.values(tree), strict=True):
        yield from values_of(child, value)


def structure(schema: Schema) -> str:
    """Return what must be equal on all ranks, as text.

    >>> columns = Column("rows", "float32", (3,)), Column("text")
    >>> structure(Group("dict", ("boxes", "names"), columns))
    "{'boxes': float32[n, 3], 'names': list}"
    """
    if _is_list(schema):
        return "list"
    if isinstance(schema, Column):
        return f"{schema.dtype}[{', '.join(map(str, ('n', *schema.shape)))}]"
    texts = []
    for key, child in zip(schema.keys, schema.children, strict=True):
        text = structure(child)
        texts.append(text if schema.kind == "tuple" else f"{key!r}: {text}")
    if schema.kind == "tuple":
        return f"({', '.join(texts)})"
    return f"{{{', '.join(sorted(texts))}}}"
