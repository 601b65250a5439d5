"""Comparisons as formulas, above all those that ask for the rank."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial

from distlint.analysis.formula import (
    DATA,
    FALSE,
    RANK,
    TRUE,
    UNKNOWN,
    Atom,
    Constant,
    Formula,
    Not,
    Reason,
    negate,
    numbered,
    some,
    varies,
)
from distlint.analysis.joining import combine, through_unseen
from distlint.analysis.state import State
from distlint.analysis.value import OF_RANK, Value

_NUMBERS = ("rank", "local_rank")
_FLAGS = {"zero": ("rank", 0), "local_zero": ("local_rank", 0), "last": ("rank", "last")}


def flag(value: bool) -> Formula:
    """Return a constant as a formula."""
    return TRUE if value else FALSE


def told(kind: str, reason: Reason) -> Value:
    """Return the value of a name or call that tells the rank, or how many there are."""
    axis = reason.axis
    if kind in _NUMBERS:
        return Value(RANK, reason, Not(numbered(kind, axis, 0)), family=kind)
    if kind in _FLAGS:
        return Value(RANK, reason, numbered(_FLAGS[kind][0], axis, _FLAGS[kind][1]), family="flag")
    if kind in ("group", "mesh"):
        return Value(0, formula=Constant(True, axis), family=kind)
    if kind == "distributed":
        return Value(0, formula=TRUE, family="distributed")
    return Value(0, family=kind)


def compared(state: State, node: ast.Compare, values: list[Value]) -> Value:
    """Return the value of a comparison.

    A test of the rank is one of a few atoms, so that ``rank == 0``, ``not rank`` and ``is_main_process`` are one. A
    test for several ranks is true, since nothing can go wrong on one.
    """
    whole = combine(values)
    formula = None
    if len(values) == 2:
        formula = _formula(node, values[0], node.ops[0], values[1])
        if formula is None and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            formula = _formula(node, values[1], _mirrored(node.ops[0]), values[0])
    if formula is None:
        formula = _atom(state, node, values, whole)
    family = "mask" if any(value.family in ("batch", "part") or value.grad for value in values) else "flag"
    return Value(max(varies(formula), 0), whole.reason, formula, family, sources=whole.sources)


def matched(state: State, node: ast.expr, subject: Value, pattern: ast.pattern) -> Value:
    """Return the value of "does this pattern fit": of plain values, a comparison."""
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
        return Value(0, formula=TRUE)
    parts = pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]
    plain = [part.value for part in parts if isinstance(part, ast.MatchValue | ast.MatchSingleton)]
    equal = ast.Compare(node, [ast.Eq()], [])
    formulas = [_formula(equal, subject, ast.Eq(), _plain(state, each)) for each in plain]
    found = [formula for formula in formulas if formula is not None]
    if len(found) == len(parts):
        formula = some(found)
    else:
        text = f"{state.index.text_of(node)} is {state.index.text_of(pattern)}"
        formula = Atom(text, subject.varies, reason=subject.reason)
    return Value(max(varies(formula), 0), subject.reason, formula, "flag")


def _plain(state: State, value: object) -> Value:
    return state.value(value) if isinstance(value, ast.expr) else Value(0, constant=value)


def _mirrored(operator: ast.cmpop) -> ast.cmpop:
    pairs = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}
    return pairs.get(type(operator), type(operator))()


def _atom(state: State, node: ast.Compare, values: list[Value], whole: Value) -> Formula:
    text = state.index.text_of(node)
    varying = whole.varies
    is_of_kind = any(isinstance(value.constant, str) for value in values)  # a key or a mode, alike in every batch
    is_of_kind |= not values[0].is_local and any(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops)
    is_set_here = whole.reason is not None and whole.reason.control
    is_identity = not is_set_here and any(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops)
    if _asks_for_nothing(node, values) or any(value.family == "clock" for value in values):
        varying = max(varying, DATA)
    elif is_identity or (is_of_kind and not whole.is_rank):
        varying = min(varying, 1)
    if whole.is_rank and not is_set_here and not any(value.family in OF_RANK for value in values):
        varying = min(varying, UNKNOWN)  # of what follows from the rank, all may answer alike
    is_proof = is_set_here or not isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn)
    reason = whole.reason if is_proof else through_unseen(whole).reason
    formula: Formula = Atom(text, varying, reason=reason)
    if len(values) == 2 and type(node.ops[0]) in (ast.NotEq, ast.IsNot, ast.NotIn):
        plain = {"!=": "==", "is not": "is", "not in": "in"}
        written = {ast.NotEq: "!=", ast.IsNot: "is not", ast.NotIn: "not in"}[type(node.ops[0])]
        return negate(Atom(text.replace(f" {written} ", f" {plain[written]} ", 1), varying, reason=reason))
    return formula


def _asks_for_nothing(node: ast.Compare, values: list[Value]) -> bool:
    """True if a test asks whether this rank's batch is empty or missing, which it may be on one rank alone."""
    asked, against = values[0], values[-1]
    if isinstance(node.ops[0], ast.Is | ast.IsNot):
        return asked.family == "batch" and isinstance(node.left, ast.Name)
    is_empty = against.constant in (0, 1) if isinstance(node.ops[0], ast.Lt | ast.GtE) else against.constant == 0
    return is_empty and asked.family == "length" and asked.reason is not None


def _formula(node: ast.Compare, left: Value, operator: ast.cmpop, right: Value) -> Formula | None:
    """The formula of ``left operator right`` where the left side tells something about ranks."""
    if left.family in _NUMBERS:
        axis = left.reason.axis if left.reason is not None else ""
        return _rank_formula(partial(numbered, left.family, axis), operator, right)
    if left.family in ("world", "local_world"):
        return _world_formula(operator, right.constant)
    if left.family == "length" and left.formula is not None:
        return _entries_formula(left.formula, operator, right.constant)
    if left.formula is not None and isinstance(right.constant, bool):
        same = right.constant is isinstance(operator, ast.Eq | ast.Is)
        return left.formula if same else negate(left.formula)
    return None


def _entries_formula(has_some: Formula, operator: ast.cmpop, number: object) -> Formula | None:
    """The formula of ``len(x) == 0``, ``len(x) > 0`` or the like: whether there are any."""
    none = (ast.Eq, ast.LtE) if number == 0 else (ast.Lt,)
    some_ = (ast.NotEq, ast.Gt) if number == 0 else (ast.GtE,)
    if number not in (0, 1) or not isinstance(operator, (*none, *some_)):
        return None
    return negate(has_some) if isinstance(operator, none) else has_some


def _rank_formula(is_rank: Callable[[object], Atom], operator: ast.cmpop, right: Value) -> Formula | None:
    zero = is_rank(0)
    if isinstance(operator, ast.In | ast.NotIn):
        members = [part.constant for part in right.elements]
        if members and set(members) <= {0, -1, None} and 0 in members:
            return zero if isinstance(operator, ast.In) else negate(zero)
        return None
    if isinstance(operator, ast.Is | ast.IsNot) and right.family == "none":
        return flag(isinstance(operator, ast.IsNot))
    number = right.constant
    if number is None and right.family != "":
        return None
    if not isinstance(number, int):
        return _other_rank(is_rank, operator, right)
    if number == -1:
        return {ast.Eq: FALSE, ast.NotEq: TRUE, ast.Gt: TRUE, ast.LtE: FALSE}.get(type(operator))
    if number == 0:
        return _against_zero(zero, operator)
    if number == 1 and isinstance(operator, ast.Lt | ast.GtE):
        return zero if isinstance(operator, ast.Lt) else Not(zero)
    return _other_rank(is_rank, operator, right)


def _against_zero(zero: Formula, operator: ast.cmpop) -> Formula | None:
    if isinstance(operator, ast.Eq | ast.LtE | ast.Is):
        return zero
    if isinstance(operator, ast.NotEq | ast.Gt | ast.IsNot):
        return negate(zero)
    return {ast.GtE: TRUE, ast.Lt: FALSE}.get(type(operator))


def _other_rank(is_rank: Callable[[object], Atom], operator: ast.cmpop, right: Value) -> Formula | None:
    if type(operator) not in (ast.Eq, ast.NotEq) or right.constant is None:
        return None
    atom = is_rank(right.constant)
    return atom if isinstance(operator, ast.Eq) else Not(atom)


def _world_formula(operator: ast.cmpop, number: object) -> Constant | None:
    if number == 1:
        return {ast.Eq: FALSE, ast.NotEq: TRUE, ast.Gt: TRUE, ast.LtE: FALSE, ast.GtE: TRUE}.get(type(operator))
    if number == 0:
        return {ast.Eq: FALSE, ast.NotEq: TRUE, ast.Gt: TRUE}.get(type(operator))
    if number == 2:
        return {ast.Lt: FALSE, ast.GtE: TRUE}.get(type(operator))
    return None
