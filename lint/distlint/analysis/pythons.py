"""What Python's own functions return."""

from __future__ import annotations

import ast
from collections.abc import Callable

from distlint.analysis.formula import UNKNOWN
from distlint.analysis.items import dict_of, element
from distlint.analysis.measures import measure_in
from distlint.analysis.names import SHARE_OF, attribute
from distlint.analysis.orders import order_of_set
from distlint.analysis.state import State
from distlint.analysis.tensors import own_length
from distlint.analysis.value import NONE_VALUE, SAME_VALUE, UNKNOWN_VALUE, Value
from distlint.api import Effect

Builtin = Callable[[State, ast.Call, tuple[Value, ...], Value], Value]


def _pass_on(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return args[0]._replace(constant=None, elements=()) if args else SAME_VALUE


def _next(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return element(state, args[0]) if args else UNKNOWN_VALUE


def _len(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return own_length(args[0] if args else UNKNOWN_VALUE, whole, {})


def _range(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    """As long as this rank's number says, but where it is an entry of the batch, as likely a setting.

    From one number of the rank's to another, as far as is known, every rank has as many; in strides from it, not.
    """
    if len(args) == 3:
        state.emit(SHARE_OF, node, args=(args[0], args[2]))
    asked = args[:1] if len(args) == 3 and args[0].is_rank else args
    own = [value for value in asked if value.is_local and value.family not in ("batch", "part")]
    return whole._replace(family="range", length=len(own) == 1 or (len(own) > 1 and len(args) == 3))


def _set(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return whole._replace(family="set", order=order_of_set(args))


def _sorted(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return (args[0] if args else whole)._replace(family="list", order="")


def _enumerate(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    inside = args[0] if args else whole
    return inside._replace(family="enumerate", elements=(inside,), constant=None, formula=None)


def _zip(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return whole._replace(family="zip", elements=args)


def _test(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    """A test of a type: which rank it is, does not follow from one."""
    return Value(UNKNOWN, family="flag")


def _bool_of(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return whole._replace(family="flag", formula=args[0].formula if args else None)


def _nothing(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    state.emit(Effect("show", "print"), node, args=args)
    return NONE_VALUE


def _joined(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return whole._replace(scale=args[0].scale if args else "", length=False)


def _summed(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    measure = measure_in(args[0]) if args else None
    return whole._replace(scale=(args[0].scale if args else "") or "sum", measure=measure)


def _made_int(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return _pass_on(state, node, args, whole)._replace(dtype="int")


def _made_float(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    return _pass_on(state, node, args, whole)._replace(dtype="float")


def _made_dict(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    options = {each.arg or "**": state.value(each.value) for each in node.keywords}
    return dict_of(args, options)


def _got(state: State, node: ast.Call, args: tuple[Value, ...], whole: Value) -> Value:
    """``getattr(x, "name")``."""
    if len(args) < 2 or not isinstance(args[1].constant, str):
        return UNKNOWN_VALUE
    written = ast.Attribute(node.args[0], args[1].constant, ast.Load())
    return attribute(state, args[0], ast.copy_location(written, node))


BUILTINS: dict[str, Builtin] = {
    **dict.fromkeys(("abs", "round", "list", "tuple", "iter", "reversed", "tqdm"), _pass_on),
    **dict.fromkeys(("isinstance", "hasattr", "callable", "issubclass"), _test),
    **dict.fromkeys(("set", "frozenset"), _set),
    **dict.fromkeys(("min", "max", "str", "repr"), _joined),
    "dict": _made_dict,
    "float": _made_float,
    "getattr": _got,
    "int": _made_int,
    "sum": _summed,
    "bool": _bool_of,
    "enumerate": _enumerate,
    "len": _len,
    "next": _next,
    "print": _nothing,
    "range": _range,
    "sorted": _sorted,
    "zip": _zip,
}
