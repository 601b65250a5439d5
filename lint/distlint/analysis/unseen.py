"""Calls of what cannot be seen: methods of tensors and lists, and anything else."""

from __future__ import annotations

import ast
import builtins
import io
import sys
from collections.abc import Callable

from distlint.analysis.arithmetic import arithmetic
from distlint.analysis.changes import GROW, add_to, change, note_reduction
from distlint.analysis.events import Step
from distlint.analysis.formula import DATA, UNKNOWN
from distlint.analysis.given import Call
from distlint.analysis.joining import of_unseen, through_unseen
from distlint.analysis.measures import curved
from distlint.analysis.metrics import CURVES
from distlint.analysis.names import SHARE_OF
from distlint.analysis.own import CALLED, forward, of_other_file, owners
from distlint.analysis.pythons import BUILTINS
from distlint.analysis.state import State
from distlint.analysis.tensors import METHODS_OF_TENSORS, named_dtype, with_dimension
from distlint.analysis.value import HAS_GRADIENT, MAY_HAVE_GRADIENT, NONE_VALUE, UNKNOWN_VALUE, Value
from distlint.api import Effect, brings_together

_OF_TENSORS = frozenset({"gather", "scatter", "scatter_reduce", "index_reduce"})  # of this rank's own tensor
ARITHMETIC: dict[str, ast.operator] = {
    **dict.fromkeys(("div", "div_", "divide", "true_divide"), ast.Div()),
    **dict.fromkeys(("mul", "mul_", "multiply"), ast.Mult()),
    **dict.fromkeys(("add_", "sub_"), ast.Add()),
}
_SEEN = frozenset({*sys.stdlib_module_names, "numpy", "torch"})  # their calls are known, or no collectives
_OF_PYTHON = frozenset(name for kind in (str, list, dict, set, io.TextIOWrapper) for name in dir(kind))
_TEXTS = (ast.Constant, ast.JoinedStr)
_TELLS = frozenset({"distributed", "flag", "group", "local_rank", "mesh", "rank", "world"})


def opaque(state: State, name: str, call: Call) -> None:
    """Note a call into code that cannot be seen and may make collectives; one that is given a text tells it."""
    is_known = name.partition(".")[0] in _SEEN or hasattr(builtins, name)
    if not is_known and not (call.node.args and isinstance(call.node.args[0], _TEXTS)):
        call.emit(state, Effect("opaque", name.rpartition(".")[2]))


def call_unseen(state: State, call: Call) -> Value:
    """Return the result of a call that nothing is known of but its name and arguments."""
    func, callee = call.node.func, call.callee
    if not call.values and callee.family in _TELLS:
        return callee
    if callee.wrapped or callee.family in CALLED:
        return forward(state, call)
    if isinstance(func, ast.Attribute):
        owned = (state.facts.find(f"{owner}.{func.attr}") for owner in owners(state, call.receiver))
        inherited = next(filter(None, owned), None)
        if inherited is not None:
            return of_other_file(state, call, inherited)
        handler = _METHODS.get(func.attr)
        known = handler(state, call) if handler is not None else None
        return known if known is not None else _method(state, call)
    if not isinstance(func, ast.Name):
        return call.given
    builtin = BUILTINS.get(func.id) if func.id not in state.names else None
    if builtin is not None:
        return builtin(state, call)
    opaque(state, func.id, call)
    return UNKNOWN_VALUE if brings_together(func.id) else _computed(state, func.id, of_unseen(call.values))


def _computed(state: State, name: str, whole: Value) -> Value:
    """What an unseen model or loss makes of a batch."""
    is_loss = "loss" in name.lower() or name == "criterion"
    if whole.varies != DATA:
        return whole._replace(scale="")
    grad = 0 if state.gradless else HAS_GRADIENT if is_loss else MAY_HAVE_GRADIENT
    return whole._replace(grad=max(grad, whole.grad), scale="mean?" if is_loss else "")


def _method(state: State, call: Call) -> Value:
    """A method that has no handler of its own: of a tensor, or of anything else."""
    name, receiver, whole = call.name, call.receiver, call.whole
    if receiver.family == "metric" and name in ("clone", "to", "copy"):
        return receiver
    function = METHODS_OF_TENSORS.get(name)
    if function is not None:
        note_reduction(state, name, call.node, receiver)
        result = function(receiver, whole, with_dimension(call.args, call.options))
        dtype = next(filter(None, map(named_dtype, call.args)), "") if name in ("to", "type") else ""
        return result._replace(dtype=dtype) if dtype else result
    if name not in _OF_PYTHON and not receiver.family:
        opaque(state, name, call)
    if brings_together(name) and not (name in _OF_TENSORS and receiver.is_local):
        return UNKNOWN_VALUE
    if receiver.is_rank and receiver.reason is not None and receiver.reason.control:
        return UNKNOWN_VALUE  # another object on some ranks may still tell the same
    is_model = whole.varies == DATA and receiver.varies < DATA
    if is_model:
        return _computed(state, name, whole)
    return (whole if name in _OF_PYTHON else through_unseen(whole))._replace(scale="")


def _arithmetic(state: State, call: Call) -> Value | None:
    if not call.args:
        return None
    result = arithmetic(state, ARITHMETIC[call.name], call.receiver, call.first, call.node)
    return change(state, call.owner, result) if call.name.endswith("_") else result


def _adds(state: State, call: Call) -> Value | None:
    if not call.values:
        return None
    call.emit(state, GROW)
    add_to(state, call.owner, call.receiver, call.args[-1] if call.args else call.given)
    return NONE_VALUE


def _view(state: State, call: Call) -> Value | None:
    """``d.items()``, which a loop takes apart."""
    if call.args:
        return None
    family = call.receiver.family
    return call.receiver._replace(family=call.name if family in ("batch", "dict", "") else family)


def _files(state: State, call: Call) -> Value:
    return Value(UNKNOWN, family="files", order="files")


def _sets(state: State, call: Call) -> Value | None:
    order = call.receiver.order
    if order not in ("set", "texts"):
        return None
    return call.whole._replace(family="set", order=order if call.name == "difference" else "set")


def _backward(state: State, call: Call) -> Value:
    event = call.emit(state, Effect("backward", "backward"))
    if not state.keeps_gradients:
        state.block.append(Step("backward", state.place(call.node), event, event.effect))
    return NONE_VALUE


def _formatted(state: State, call: Call) -> Value | None:
    is_text = isinstance(call.receiver.constant, str)
    return call.whole._replace(family="text", elements=tuple(call.values)) if is_text else None


def _emptied(state: State, call: Call) -> Value:
    return change(state, call.owner, Value(UNKNOWN, family="made"))


def _shard(state: State, call: Call) -> None:
    if {"num_shards", "index"} <= call.options.keys():
        state.emit(SHARE_OF, call.node, args=(call.options["index"], call.options["num_shards"]))


def _read_out(state: State, call: Call) -> None:
    state.emit(Effect("item", "item"), call.node, receiver=call.receiver)


def _curved(state: State, call: Call) -> Value | None:
    if call.args:
        return None
    text, is_root = state.index.text_of(call.node), call.name == "sqrt"
    return call.whole._replace(measure=curved(call.receiver, call.node, text, is_root=is_root))


_METHODS: dict[str, Callable[[State, Call], Value | None]] = {
    **dict.fromkeys(("append", "extend", "add", "update", "insert", "setdefault", "appendleft"), _adds),
    **dict.fromkeys(("items", "keys", "values"), _view),
    **dict.fromkeys(("iterdir", "rglob"), _files),
    **dict.fromkeys(("difference", "intersection", "symmetric_difference", "union"), _sets),
    "backward": _backward,
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    "format": _formatted,
    **dict.fromkeys(("zero_", "fill_"), _emptied),
    "shard": _shard,
    "item": _read_out,
    **dict.fromkeys(CURVES, _curved),
}
