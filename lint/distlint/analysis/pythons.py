"""What Python's own functions return."""

from __future__ import annotations

import ast
from collections.abc import Callable

from distlint.analysis.doubts import doubt_of
from distlint.analysis.formula import UNKNOWN
from distlint.analysis.given import Call
from distlint.analysis.items import dict_of, element
from distlint.analysis.measures import measure_in
from distlint.analysis.names import SHARE_OF, attribute
from distlint.analysis.orders import leaves_ties, order_of_set
from distlint.analysis.state import State
from distlint.analysis.tensors import own_length
from distlint.analysis.value import NONE_VALUE, SAME_VALUE, UNKNOWN_VALUE, Value
from distlint.api import Effect

Builtin = Callable[[State, Call], Value]
ITERATE = Effect("iterate", "iterate")  # of a loader that is run over


def _pass_on(state: State, call: Call) -> Value:
    return call.first._replace(constant=None, elements=()) if call.args else SAME_VALUE


def _iter(state: State, call: Call) -> Value:
    if call.first.family == "loader":
        state.emit(ITERATE, call.node, args=(call.first,))
    return _pass_on(state, call)


def _next(state: State, call: Call) -> Value:
    return element(state, call.first)


def _len(state: State, call: Call) -> Value:
    result = own_length(call.first, call.given, {})
    is_doubted = bool(call.args) and doubt_of(call.first, call.node.args[0], state.function)
    return result._replace(formula=state.as_formula(call.first, call.node.args[0])) if is_doubted else result


def _range(state: State, call: Call) -> Value:
    """As long as this rank's number says, but where it is an entry of the batch, as likely a setting.

    From one number of the rank's to another, as far as is known, every rank has as many; in strides from it, not.
    """
    if len(call.args) == 3:
        state.emit(SHARE_OF, call.node, args=(call.first, call.args[2]))
    asked = call.args[:1] if len(call.args) == 3 and call.first.is_rank else call.args
    own = [value for value in asked if value.is_local and value.family not in ("batch", "part")]
    return call.given._replace(family="range", length=len(own) == 1 or (len(own) > 1 and len(call.args) == 3))


def _set(state: State, call: Call) -> Value:
    return call.given._replace(family="set", order=order_of_set(call.args))


def _sorted(state: State, call: Call) -> Value:
    return call.first._replace(family="list", order=call.first.order if leaves_ties(call.node) else "")


def _enumerate(state: State, call: Call) -> Value:
    inside = call.first
    return inside._replace(family="enumerate", elements=(inside,), constant=None, formula=None)


def _zip(state: State, call: Call) -> Value:
    return call.given._replace(family="zip", elements=call.args)


def _test(state: State, call: Call) -> Value:
    """A test of a type: which rank it is, does not follow from one."""
    return Value(UNKNOWN, family="flag")


def _bool_of(state: State, call: Call) -> Value:
    return call.given._replace(family="flag", formula=call.first.formula)


def _nothing(state: State, call: Call) -> Value:
    state.emit(Effect("show", "print"), call.node, args=call.args)
    return NONE_VALUE


def _joined(state: State, call: Call) -> Value:
    return call.given._replace(scale=call.first.scale, length=False)


def _summed(state: State, call: Call) -> Value:
    return call.given._replace(scale=call.first.scale or "sum", measure=measure_in(call.first))


def _made_int(state: State, call: Call) -> Value:
    return _pass_on(state, call)._replace(dtype="int")


def _made_float(state: State, call: Call) -> Value:
    return _pass_on(state, call)._replace(dtype="float")


def _made_dict(state: State, call: Call) -> Value:
    return dict_of(call.args, call.options)


def _got(state: State, call: Call) -> Value:
    """``getattr(x, "name")``."""
    if len(call.args) < 2 or not isinstance(call.args[1].constant, str):
        return UNKNOWN_VALUE
    written = ast.Attribute(call.node.args[0], call.args[1].constant, ast.Load())
    return attribute(state, call.first, ast.copy_location(written, call.node))


BUILTINS: dict[str, Builtin] = {
    **dict.fromkeys(("abs", "round", "list", "tuple", "reversed", "tqdm"), _pass_on),
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
    "iter": _iter,
    "len": _len,
    "next": _next,
    "print": _nothing,
    "range": _range,
    "sorted": _sorted,
    "zip": _zip,
}
