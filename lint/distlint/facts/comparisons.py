"""Comparisons and what is joined of them, as written: their operands, and the rank that an order singles out."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

_MIRRORED: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.LessThan: cst.GreaterThan,
    cst.GreaterThan: cst.LessThan,
    cst.LessThanEqual: cst.GreaterThanEqual,
    cst.GreaterThanEqual: cst.LessThanEqual,
}


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
