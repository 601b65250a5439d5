"""Comparisons and what is joined of them, as written: their operands, and the rank that an order singles out."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from distlint.facts.tree import is_name, tail

_MIRRORED: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.LessThan: cst.GreaterThan,
    cst.GreaterThan: cst.LessThan,
    cst.LessThanEqual: cst.GreaterThanEqual,
    cst.GreaterThanEqual: cst.LessThanEqual,
}


def compare_order(
    rank: str, operator: cst.BaseCompOp, value: int | None, text: str, swapped: bool
) -> tuple[str, bool] | None:
    """The key of ``rank < value``, and whether the test holds where the key does; None when it says nothing."""
    kind = _MIRRORED.get(type(operator)) if swapped else type(operator)
    if kind in (cst.LessThan, cst.GreaterThanEqual):
        if value == 1:
            return f"{rank}==0", kind is cst.LessThan
        return None if value == 0 else (f"{rank}<{text}", kind is cst.LessThan)
    if kind in (cst.LessThanEqual, cst.GreaterThan):
        if value == 0:
            return f"{rank}==0", kind is cst.LessThanEqual
        return None if value == -1 else (f"{rank}<={text}", kind is cst.LessThanEqual)
    return None


def is_negative(node: cst.BaseExpression) -> bool:
    """Written as a negation: not x, x != y, x is not y, x not in y."""
    if isinstance(node, cst.Comparison):
        return isinstance(node.comparisons[0].operator, cst.NotEqual | cst.IsNot | cst.NotIn)
    return isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not)


def is_without_group(node: cst.BaseExpression) -> bool:
    """``process_group is None``, by whatever name that ends so."""
    if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
        return False
    target = node.comparisons[0]
    if not isinstance(target.operator, cst.Is | cst.Equal) or not is_name(target.comparator, "None"):
        return False
    return (tail(node.left) or "").endswith("group")


def bare_names(test: cst.BooleanOperation) -> list[cst.Name]:
    """The variables among what is joined by ``and`` or ``or``, negated or not."""
    parts = operands(test, type(test.operator))
    bare = (part.expression if isinstance(part, cst.UnaryOperation) else part for part in parts)
    return [part for part in bare if isinstance(part, cst.Name)]


def operands(test: cst.BaseExpression, kind: type[cst.BaseBooleanOp]) -> list[cst.BaseExpression]:
    """What is joined by ``and``, or by ``or``."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, kind):
        return operands(test.left, kind) + operands(test.right, kind)
    return [test]


def implies(test: cst.BaseExpression, outcome: bool, says: Callable[[cst.BaseExpression, bool], bool]) -> bool:
    """Whether a test with this outcome means what ``says`` reads in one of its parts with that part's outcome."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return implies(test.expression, not outcome, says)
    if isinstance(test, cst.BooleanOperation):
        parts = [implies(part, outcome, says) for part in operands(test, type(test.operator))]
        is_each = isinstance(test.operator, cst.And) is outcome  # every part has the outcome; else some part has
        return any(parts) if is_each else all(parts)
    return says(test, outcome)
