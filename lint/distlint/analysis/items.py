"""Tuples, lists and dicts that are written out, their items, and what loops take from them."""

from __future__ import annotations

import ast
from functools import partial
from typing import Any

from distlint.analysis.formula import DATA, SAME, UNKNOWN, Reason
from distlint.analysis.joining import any_of, combine
from distlint.analysis.measures import one_of_several
from distlint.analysis.meshes import part_of_mesh
from distlint.analysis.names import SHARE_OF, environment
from distlint.analysis.orders import order_of
from distlint.analysis.state import State
from distlint.analysis.value import SAME_VALUE, Value, Written, items_of, shallow
from distlint.api import names_loss

_MOST_ELEMENTS = 64  # of what is written out and kept apart; longer ones are tables


def subscript(state: State, node: ast.Subscript) -> Value:
    """Return an item or a slice."""
    whole, index = state.value(node.value), state.value(node.slice)
    if whole.name == "os.environ" and isinstance(index.constant, str):
        return environment(state, index.constant, node)
    part = part_of_mesh(node, whole, index)
    if part is not None:
        return part
    number, most = index.constant, len(whole.elements)
    if isinstance(number, int) and -most <= number < most and whole.family != "dict":
        return whole.elements[number]
    if whole.family == "shape":
        varying = DATA if whole.length and index.constant == 0 else UNKNOWN
        return whole._replace(varies=varying, family="length", length=False, dtype="int")
    if whole.elements and whole.family in ("dict", "list") and not isinstance(node.slice, ast.Slice):
        return _item(whole, key_of_item(state, node.slice, index))
    if isinstance(node.slice, ast.Slice):
        return _sliced(state, whole, index, _slice(state, node, node.slice, combine([whole, index])), node.slice)
    is_one_of_many = isinstance(index.constant, int) and bool(whole.reduced)  # of a tensor of several sums
    is_loss = isinstance(index.constant, str) and names_loss(index.constant) and whole.is_local
    return combine([whole, index])._replace(
        family=_family_of_item(node, whole, index),
        wrapped=whole.wrapped,
        reduced=whole.reduced,
        divided=whole.divided,
        measure=whole.measure or one_of_several(whole, index.constant, node, state.index.text_of(node)),
        call=whole.call if whole.family == "result" else None,
        scale="mean?" if is_loss else whole.scale if index.family == "mask" or is_one_of_many else "",
        length=_is_own_length(whole, index),
    )


def _is_own_length(whole: Value, index: Value) -> bool:
    """Whether what is picked out is as long as this rank's data say."""
    if whole.family == "shares" and index.is_rank:
        return True
    if index.family == "mask":
        return whole.length or index.length or index.is_local
    return index.length or (whole.length and whole.family != "list")


def _family_of_item(node: ast.Subscript, whole: Value, index: Value) -> str:
    if whole.family == "ragged" and isinstance(node.slice, ast.Tuple):
        return "ragged" if all(isinstance(part, ast.Slice) for part in node.slice.elts) else ""
    if whole.family == "ranked":
        return "ranked"
    if index.family == "counter" and whole.is_local:
        return "example"
    return "part" if whole.family == "batch" and isinstance(index.constant, str) else ""


def _item(whole: Value, key: object) -> Value:
    """An item of a list or dict that is written out; any of them where it is not known which."""
    item = items_of(whole).get(key)
    either = any_of(whole.elements)._replace(measure=None)  # only one of them may measure anything
    return item if item is not None else either


def _sliced(state: State, whole: Value, index: Value, result: Value, part: ast.Slice) -> Value:
    """A cut by this rank's data is as long as that says; one with steps that begins at the rank, one more or less.

    What is cut to a multiple of the number of ranks gives them equal shares.
    """
    is_even = part.upper is not None and state.value(part.upper).family == "even"
    is_own = index.varies == DATA or (index.is_rank and part.step is not None and whole.family != "even")
    family = "even" if is_even else whole.family if whole.family in ("list", "loader", "ragged") else ""
    return result._replace(length=whole.length or is_own, scale=whole.scale, family=family, wrapped=whole.wrapped)


def _slice(state: State, node: ast.Subscript, part: ast.Slice, result: Value) -> Value:
    """What follows or comes before the rank's own place of what was gathered needs no gradient of this rank."""
    bounds = [state.value(bound) for bound in (part.lower, part.upper) if bound is not None]
    if part.step is not None and bounds:
        state.emit(SHARE_OF, node, args=(bounds[0], state.value(part.step)))
    is_rest = any(bound.family in ("rank", "local_rank") for bound in bounds)
    return result._replace(cut=None) if is_rest else result


def written_out(state: State, node: ast.Tuple | ast.List | ast.Set) -> Value:
    """Return a tuple, list or set that is written out."""
    elements = tuple(shallow(state.value(part)) for part in node.elts)
    family = {ast.Tuple: "tuple", ast.List: "list", ast.Set: "set"}[type(node)]
    if any(isinstance(part, ast.Starred) for part in node.elts):
        return combine(list(elements))._replace(family=family)
    whole = combine(list(elements)) if elements else SAME_VALUE
    order = order_of(elements) if isinstance(node, ast.Set) else ""
    scales = {part.scale for part in elements}
    scale = scales.pop() if len(scales) == 1 else ""
    return whole._replace(
        family=family, elements=elements if len(elements) <= _MOST_ELEMENTS else (), order=order, scale=scale
    )


def dict_written(state: State, node: ast.Dict) -> Value:
    """Return a dict that is written out."""
    items: dict[object, Value] = {}
    for key, part in zip(node.keys, node.values, strict=True):
        name = key_of_item(state, key, state.value(key)) if key is not None else None
        value = state.value(part)
        items.update({name: shallow(value)} if key is not None else items_of(value) or {None: value})
    whole = combine(list(items.values())) if items else SAME_VALUE
    if len(items) > _MOST_ELEMENTS or None in items:
        return whole._replace(family="dict")
    return whole._replace(family="dict", elements=tuple(items.values()), keys=tuple(items))


def key_of_item(state: State, node: ast.expr, value: Value) -> object:
    """Return what an item of a dict is known by: a constant, or else the text of what names it."""
    return value.constant if value.constant is not None else Written(state.index.text_of(node))


def element(state: State, value: Value) -> Value:
    """Return one turn's value of what is iterated over."""
    if value.family == "loader":
        return _batch(state, value)
    if value.family == "outputs":
        return value.elements[0] if value.elements else Value(DATA, value.reason)
    if value.family == "range":
        return Value(value.varies, value.reason, family="counter", dtype="int")
    if value.family == "items":
        return Value(value.varies, value.reason, family="tuple", elements=(_key_of(value), _entry_of(value)))
    if value.family in ("keys", "dict"):
        return _key_of(value)
    if value.family == "batch":
        return Value(value.varies, value.reason, family="part")
    if value.family == "enumerate" and value.elements:
        return Value(
            SAME, family="tuple", elements=(Value(UNKNOWN, family="number"), element(state, value.elements[0]))
        )
    if value.family == "zip":
        return Value(
            value.varies, value.reason, family="tuple", elements=tuple(map(partial(element, state), value.elements))
        )
    if value.elements and value.family in ("list", "tuple", "values"):
        return any_of(value.elements)
    return Value(
        value.varies,
        value.reason,
        family=_part_of(value),
        sources=value.sources,
        grad=value.grad,
        reduced=value.reduced,
        measure=value.measure,
        call=value.call if value.family == "result" else None,
    )


def _batch(state: State, loader: Value) -> Value:
    """A batch: this rank's own, but of a loader that a callback has made for itself, which no trainer deals out."""
    owner = state.function.owner
    if owner is not None and state.facts.family(owner) == "callback" and not loader.wrapped:
        return Value(UNKNOWN)
    return Value(DATA, loader.reason or Reason(0, "the batches of a loader"), family="batch")


def _key_of(value: Value) -> Value:
    """A key of a dict: one of its own rank's batches, or the same everywhere as far as is known."""
    return Value(DATA if value.order == "keys" else UNKNOWN, value.reason)


def _entry_of(items: Value) -> Value:
    """A value of a dict: any of those that are written out."""
    if items.elements:
        return any_of(items.elements)
    call = items.call if items.measure is not None or items.call is not None else None
    return Value(items.varies, items.reason, family="part", measure=items.measure, reduced=items.reduced, call=call)


def _part_of(value: Value) -> str:
    """The family of what is in a value: an example of what a rank's data are, or again what a metric has returned."""
    if value.family == "result":
        return "result"
    return "example" if value.is_local and value.family in ("", "part", "example", "mask") else ""


def with_item(known: Value, key: object, value: Value) -> tuple[tuple[Any, ...], tuple[Value, ...]]:
    """Keys and parts of a dict with one more, or another, item; nothing where they are not known."""
    if known.family != "dict" or (known.is_local and not known.elements):
        return (), ()
    items = {**items_of(known), key: value}
    return tuple(items), tuple(items.values())


def dict_of(args: tuple[Value, ...], options: dict[str, Value]) -> Value:
    """Return the dict that is made of a dict, or pairs, and items by name."""
    given = args[-1] if args else SAME_VALUE
    items = {**items_of(given), **options}
    if "**" in items or (args and not given.elements):
        return combine([*args, *options.values()])._replace(family="dict", order=given.order)
    whole = combine([given, *options.values()])
    return whole._replace(family="dict", elements=tuple(items.values()), keys=tuple(items))
