"""What the functions of torch that make tensors make, as far as their arguments say."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts import tensor_names as names
from distlint.facts.tree import keyword, positional, tail, text_of

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts
    from distlint.facts.sketch import SketchedCall


class Place(enum.Enum):
    """Where a value lives.

    ``FRESH`` is a tensor of rank 1 or more on the CPU; ``PLAIN`` is what mixes with tensors of every device:
    numbers, text, shapes, tensors of rank 0.
    """

    DEVICE = "device"
    FRESH = "fresh"
    PLAIN = "plain"
    UNKNOWN = "unknown"


def made(facts: ModuleFacts, call: cst.Call) -> Place | None:
    """What a factory of torch makes; None for other calls and where its arguments do not say."""
    last = tail(call.func)
    if last not in names.FACTORIES or facts.resolve(call.func) != f"torch.{last}":
        return None
    if any(arg.star == "**" for arg in call.args) or keyword(call, "out") is not None:
        return Place.UNKNOWN
    device = keyword(call, "device")
    if device is not None:
        return Place.UNKNOWN if text_of(device) == "cpu" else Place.DEVICE
    given = positional(call)
    if last in names.ALWAYS_RANKED:
        return Place.FRESH
    if last in names.BY_SIZE:
        return _by_size(call, given[0] if given else keyword(call, "size"))
    if last in names.SIZED_LATER:
        return _by_size(call, keyword(call, "size") or next((each for each in given if _is_shape(each)), None))
    return _by_value(facts, call, given[0] if given else keyword(call, "data"), last)


def may_be_fresh(call: SketchedCall) -> bool:
    """Whether ``made`` may answer ``FRESH`` for a call, told by Python's own tree."""
    return call.name in names.FACTORIES and not call.gives("device") and not call.gives("out")


def _is_shape(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Tuple | cst.List)


def _by_size(call: cst.Call, size: cst.BaseExpression | None) -> Place:
    if size is None:
        return Place.FRESH if any(arg.star == "*" for arg in call.args) else Place.UNKNOWN
    is_empty = isinstance(size, cst.Tuple | cst.List) and not size.elements
    return Place.PLAIN if is_empty else Place.FRESH


def _by_value(facts: ModuleFacts, call: cst.Call, value: cst.BaseExpression | None, last: str) -> Place:
    if isinstance(value, cst.List | cst.Tuple | cst.ListComp):
        return Place.FRESH
    if isinstance(value, cst.Call) and facts.resolve(value.func) in ("builtins.list", "builtins.range"):
        return Place.FRESH
    if last == "Tensor" and isinstance(value, cst.Integer):
        return Place.FRESH
    return Place.PLAIN if _is_number(facts, value) else Place.UNKNOWN


def _is_number(facts: ModuleFacts, value: cst.BaseExpression | None) -> bool:
    if isinstance(value, cst.UnaryOperation):
        return _is_number(facts, value.expression)
    if isinstance(value, cst.BinaryOperation):
        return _is_number(facts, value.left) and _is_number(facts, value.right)
    if isinstance(value, cst.Call):
        full = facts.resolve(value.func) or ""
        return full.startswith("math.") or full in ("builtins.float", "builtins.int", "builtins.len")
    return isinstance(value, cst.BaseNumber)
