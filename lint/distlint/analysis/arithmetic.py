"""Operations on values, and comparisons."""

from __future__ import annotations

import ast

from distlint.analysis.conditions import compared
from distlint.analysis.formula import UNKNOWN, negate, varies
from distlint.analysis.joining import combine
from distlint.analysis.measures import curved, harmonic
from distlint.analysis.names import SHARE_OF
from distlint.analysis.orders import order_of_sets
from distlint.analysis.state import State
from distlint.analysis.value import OF_RANK, Measure, Value, dtype_of
from distlint.api import Effect

_SETS = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.Sub)
_SUMS = (ast.Add, ast.Sub)


def unary(state: State, node: ast.UnaryOp) -> Value:
    """Return the value of ``not``, ``-`` and the like."""
    inside = state.value(node.operand)
    if isinstance(node.op, ast.Not):
        formula = negate(state.as_formula(inside, node.operand))
        return Value(varies(formula), inside.reason, formula, sources=inside.sources)
    if isinstance(inside.constant, int | float) and isinstance(node.op, ast.USub):
        return Value(0, constant=-inside.constant)
    return inside._replace(constant=None)


def compare(state: State, node: ast.Compare) -> Value:
    """Return the value of a comparison; noted is one that gives each rank its turn."""
    values = [state.value(part) for part in (node.left, *node.comparators)]
    for turn, which in (values[:2], values[1::-1]):
        if turn.family == "turn":
            state.emit(SHARE_OF, node, args=(which, Value(0, family="world")))
    return compared(state, node, values)


def binary(state: State, node: ast.BinOp) -> Value:
    """Return the value of an operation, or of a chain of them."""
    chain = [node]  # a sum of many lines is as deep as it is long
    while isinstance(chain[-1].left, ast.BinOp):
        chain.append(chain[-1].left)
    result = state.value(chain[-1].left)
    for each in reversed(chain):
        right = state.value(each.right)
        if isinstance(each.op, ast.FloorDiv):
            note_division(state, result, right, each)
        result = arithmetic(state, each.op, result, right, each)
        if isinstance(each.op, ast.Div) and result.is_share and result.measure is None:
            result = result._replace(measure=harmonic(each, state.index.text_of(each)))
    return result


def note_division(state: State, left: Value, right: Value, node: ast.expr) -> None:
    """Note that a sum over ranks is divided by their number, in a way that keeps its type."""
    if left.reduced == "sum" and right.family == "world":
        state.emit(Effect("divide", "divide"), node, args=(left, right))


def arithmetic(state: State, operator: ast.operator, left: Value, right: Value, node: ast.expr) -> Value:
    """Return the result of an operation on two values."""
    result = combine([left, right])
    if isinstance(operator, ast.Div | ast.FloorDiv):
        quotient = _quotient(state, left, right, result)
        return (
            quotient
            if isinstance(operator, ast.Div)
            else quotient._replace(dtype=dtype_of(left), family="ranked" if left.family in OF_RANK else quotient.family)
        )
    main, other = (left, right) if _tells(left) >= _tells(right) else (right, left)
    scale, reduced, divided = main.scale, main.reduced, left.divided or right.divided
    if isinstance(operator, _SUMS) and left.is_local and right.is_local and left.scale != right.scale:
        scale = ""
    if isinstance(operator, ast.Mult):
        scale, reduced = _product(main, other)
        _share(state, left, right, node)
    families = left.family, right.family
    family = next((each for each in ("list", "even", "length", "clock") if each in families), "")
    if isinstance(operator, _SUMS) and right.family == "turn":
        family = "even"  # without this rest, or with as much more, it is a multiple of the number of ranks
    if isinstance(operator, _SETS) and (result_order := order_of_sets(left, right)):
        return result._replace(family="set", order=result_order)
    if left.family in ("rank", "local_rank") or right.family in ("rank", "local_rank"):
        family = left.family if left.family.endswith("rank") else right.family
    if isinstance(operator, ast.Mod) and left.family in ("rank", "local_rank"):
        family = "local_rank" if right.constant is None else "ranked"  # by the number of devices of a machine
    if isinstance(operator, ast.Mod) and right.family == "world":
        family = "turn"
    measure = _measured(state, operator, left, right, node)
    dtype = dtype_of(left) if dtype_of(left) == dtype_of(right) else ""
    return result._replace(scale=scale, reduced=reduced, divided=divided, family=family, measure=measure, dtype=dtype)


def _share(state: State, left: Value, right: Value, node: ast.expr) -> None:
    """Note where a rank's part of something begins: ``rank * (size // world)``."""
    for which, size in ((left, right), (right, left)):
        if size.family == "even":
            state.emit(SHARE_OF, node, args=(which, Value(0, family="world")))


def _measured(state: State, operator: ast.operator, left: Value, right: Value, node: ast.expr) -> Measure | None:
    """What a value measures that is scaled, or added to; the root of a mean of squares."""
    if isinstance(operator, ast.Pow):
        is_root = right.constant == 0.5
        return curved(left, node, state.index.text_of(node), is_root=True) if is_root else None
    if isinstance(operator, _SUMS):
        return left.measure or right.measure
    if isinstance(operator, ast.Mult):
        return left.measure if not right.is_local else right.measure if not left.is_local else None
    return None


def _quotient(state: State, left: Value, right: Value, result: Value) -> Value:
    """Divided by the number of ranks or a count of all, a value is normalised; by a local count, a local mean.

    What else it is divided by may be either.
    """
    measure = left.measure if not right.is_local or right.family == "length" else None
    result = result._replace(
        scale=left.scale, reduced=left.reduced, cut=left.cut, divided=True, dtype="float", measure=measure
    )
    if right.family == "world" or right.sources or right.reduced:
        return result._replace(family="even" if right.family == "world" and left.varies <= UNKNOWN else "")
    is_own_count = right.scale == "count" or (right.scale == "sum" and right.is_local and not right.grad)
    if left.scale in ("sum", "count") and (is_own_count or right.family == "length"):
        return result._replace(scale="local mean" if is_own_count else "mean", divided=left.divided)
    return result._replace(divided=left.divided or right.scale != "batches")


def _tells(value: Value) -> tuple[int, bool]:
    """How much of a result comes from a value: from what ranks hold of their own, then from what was reduced."""
    return value.varies, bool(value.reduced or value.scale)


def _product(main: Value, other: Value) -> tuple[str, str]:
    """What a value is over samples, and over ranks, after it is multiplied: by how many samples, a sum."""
    if other.family == "world":
        return main.scale, "scaled"
    if isinstance(other.constant, int | float):
        return main.scale, main.reduced
    is_total = other.family == "length" or other.scale == "count"
    return "sum" if is_total and main.scale else "", main.reduced
