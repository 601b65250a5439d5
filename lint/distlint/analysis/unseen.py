"""Calls of what cannot be seen: methods of tensors and lists, and anything else."""

from __future__ import annotations

import ast
import builtins
import io
import sys

from distlint.analysis.arithmetic import arithmetic
from distlint.analysis.changes import ADDS, EMPTIES, GROW, add_to, change, note_reduction
from distlint.analysis.events import Step
from distlint.analysis.formula import DATA, UNKNOWN
from distlint.analysis.measures import curved
from distlint.analysis.metrics import CURVES
from distlint.analysis.names import SHARE_OF
from distlint.analysis.own import CALLED, forward, of_other_file, owners
from distlint.analysis.pythons import BUILTINS
from distlint.analysis.state import State
from distlint.analysis.tensors import METHODS_OF_TENSORS, named_dtype, with_dimension
from distlint.analysis.value import (
    HAS_GRADIENT,
    MAY_HAVE_GRADIENT,
    NONE_VALUE,
    UNKNOWN_VALUE,
    Value,
    combine,
    of_unseen,
)
from distlint.api import Effect, brings_together

_OF_TENSORS = frozenset({"gather", "scatter", "scatter_reduce", "index_reduce"})  # of this rank's own tensor
ARITHMETIC: dict[str, ast.operator] = {
    **dict.fromkeys(("div", "div_", "divide", "true_divide"), ast.Div()),
    **dict.fromkeys(("mul", "mul_", "multiply"), ast.Mult()),
    **dict.fromkeys(("add_", "sub_"), ast.Add()),
}
_SEEN = frozenset({*sys.stdlib_module_names, "numpy", "torch"})  # their calls are known, or no collectives
_OF_PYTHON = frozenset(name for kind in (str, list, dict, set, io.TextIOWrapper) for name in dir(kind))
_VIEWS = frozenset({"items", "keys", "values"})
_OF_SETS = frozenset({"difference", "intersection", "symmetric_difference", "union"})
_TEXTS = (ast.Constant, ast.JoinedStr)
_TELLS = frozenset({"distributed", "flag", "local_rank", "rank", "world"})


def opaque(state: State, name: str, node: ast.Call, args: tuple[Value, ...], options: dict[str, Value]) -> None:
    """Note a call into code that cannot be seen and may make collectives; one that is given a text tells it."""
    is_known = name.partition(".")[0] in _SEEN or hasattr(builtins, name)
    if not is_known and not (node.args and isinstance(node.args[0], _TEXTS)):
        state.emit(Effect("opaque", name.rpartition(".")[2]), node, args=args, options=options)


def call_unseen(
    state: State, node: ast.Call, receiver: Value, callee: Value, args: tuple[Value, ...], options: dict[str, Value]
) -> Value:
    """Return the result of a call that nothing is known of but its name and arguments."""
    if not args and not options and callee.family in _TELLS:
        return callee
    whole = combine([*args, *options.values()])
    if callee.wrapped or callee.family in CALLED:
        return forward(state, callee, node, args, options)
    if isinstance(node.func, ast.Name):
        builtin = BUILTINS.get(node.func.id) if node.func.id not in state.names else None
        if builtin is not None:
            return builtin(state, node, args, whole)
        opaque(state, node.func.id, node, args, options)
        if brings_together(node.func.id):
            return UNKNOWN_VALUE
        return _of_unknown_callable(state, node.func.id, of_unseen([*args, *options.values()]))
    if isinstance(node.func, ast.Attribute):
        seen = of_unseen([*args, *options.values()])
        return _method(state, node, node.func, receiver, args, options, combine([receiver, seen]))
    return whole


def _of_unknown_callable(state: State, name: str, whole: Value) -> Value:
    is_loss = "loss" in name.lower() or name == "criterion"
    if whole.varies != DATA:
        return whole._replace(scale="")
    grad = 0 if state.gradless else HAS_GRADIENT if is_loss else MAY_HAVE_GRADIENT
    return whole._replace(grad=max(grad, whole.grad), scale="mean?" if is_loss else "")


def _method(
    state: State,
    node: ast.Call,
    func: ast.Attribute,
    receiver: Value,
    args: tuple[Value, ...],
    options: dict[str, Value],
    whole: Value,
) -> Value:
    """A method of something that no table knows: of a tensor, a list, or anything else."""
    name = func.attr
    if name in ADDS and (args or options):
        state.emit(GROW, node, receiver=receiver, args=args)
        add_to(state, func.value, receiver, args[-1] if args else combine([*options.values()]))
        return NONE_VALUE
    if name in _VIEWS and not args:
        return receiver._replace(family=name if receiver.family in ("batch", "dict", "") else receiver.family)
    if name in ("iterdir", "rglob"):
        return Value(UNKNOWN, family="files", order="files")
    if name in _OF_SETS and receiver.order in ("set", "texts"):
        return whole._replace(family="set", order=receiver.order if name == "difference" else "set")
    if name == "backward":
        event = state.emit(Effect("backward", "backward"), node, receiver=receiver, args=args, options=options)
        if not state.keeps_gradients:
            state.block.append(Step("backward", state.place(node), event, event.effect))
        return NONE_VALUE
    if name in ARITHMETIC and args:
        return _arithmetic_method(state, node, func, receiver, args[0])
    if name == "format" and isinstance(receiver.constant, str):
        return whole._replace(family="text", elements=(*args, *options.values()))
    if name in EMPTIES:
        return change(state, func.value, Value(UNKNOWN, family="made"))
    if name == "shard" and {"num_shards", "index"} <= options.keys():
        state.emit(SHARE_OF, node, args=(options["index"], options["num_shards"]))
    if name == "item":
        state.emit(Effect("item", "item"), node, receiver=receiver)
    if name in CURVES and not args:
        return whole._replace(measure=curved(receiver, node, state.index.text_of(node), is_root=name == "sqrt"))
    if receiver.family == "metric" and name in ("clone", "to", "copy"):
        return receiver
    function = METHODS_OF_TENSORS.get(name)
    if function is not None:
        note_reduction(state, name, node, receiver)
        result = function(receiver, whole, with_dimension(args, options))
        dtype = next(filter(None, map(named_dtype, args)), "") if name in ("to", "type") else ""
        return result._replace(dtype=dtype) if dtype else result
    inherited = next(filter(None, (state.facts.find(f"{owner}.{name}") for owner in owners(state, receiver))), None)
    if inherited is not None:
        return of_other_file(state, inherited, node, args, options)
    if name not in _OF_PYTHON and not receiver.family:
        opaque(state, name, node, args, options)
    if brings_together(name) and not (name in _OF_TENSORS and receiver.is_local):
        return UNKNOWN_VALUE
    if receiver.is_rank and receiver.reason is not None and receiver.reason.control:
        return UNKNOWN_VALUE  # another object on some ranks may still tell the same
    is_model = whole.varies == DATA and receiver.varies < DATA
    return _of_unknown_callable(state, name, whole) if is_model else whole._replace(scale="")


def _arithmetic_method(state: State, node: ast.Call, func: ast.Attribute, receiver: Value, other: Value) -> Value:
    result = arithmetic(state, ARITHMETIC[func.attr], receiver, other, node)
    return change(state, func.value, result) if func.attr.endswith("_") else result
