"""Names and attributes: of this function, of one around it, of the file, of classes, and what a name says."""

from __future__ import annotations

import ast
from collections.abc import Callable

from distlint.analysis.annotations import of_attribute
from distlint.analysis.conditions import told
from distlint.analysis.formula import UNKNOWN
from distlint.analysis.state import State
from distlint.analysis.value import UNKNOWN_VALUE, Value
from distlint.api import Effect, attribute_effect, environment_kind, family_of, name_effect, unbound
from distlint.syntax import ClassNode, FunctionNode, Located

_KEPT = frozenset({"correlation", "statistic"})  # of what SciPy's tests return
# Where a rank takes its part: with which number, and of how many.
SHARE_OF = Effect("share_of", "share")


def read_name(state: State, node: ast.Name) -> Value:
    """Return the value of a name."""
    found = look_up(state, node.id)
    if found is None:
        name = unbound(node.id)
        return _imported(name) if name else _conventional(state, node, node.id)
    if found.sources:
        state.read |= found.sources
    if node.id in state.owned:
        state.owned -= {node.id}
    if state.gradless and found.grad:
        found = found._replace(grad=0, cut=None)
    if found.varies <= UNKNOWN and not found.family and not found.target:
        believed = _conventional(state, node, node.id)
        return found if believed is UNKNOWN_VALUE or found.constant is not None else believed
    return found


def look_up(state: State, name: str) -> Value | None:
    """Return the value of a name: of this function, of one around it, or of the file."""
    if name in state.names:
        return state.names[name]
    function: FunctionNode | None = state.function
    while function is not None:
        if name in function.local:
            return Value(0, target=function.local[name])
        if name in function.imports:
            return _imported(function.imports[name])
        if function.parent is not None:
            known = state.facts.read(("name", function.parent, name), state.function)
            if known is not None:
                return known
        function = function.parent
    return _global(state, name)


def _global(state: State, name: str) -> Value | None:
    if name in state.index.imports:
        return _imported(state.index.imports[name])
    if name in state.index.functions:
        return Value(0, target=state.index.functions[name])
    if name in state.index.classes:
        return Value(0, target=state.index.classes[name])
    return state.facts.read(("name", state.index, name), state.function)


def _imported(name: str) -> Value:
    return Value(0, name=name, family=family_of(name) and "class")


def _conventional(state: State, node: ast.expr, name: str) -> Value:
    """What a name says by convention, where what it stands for cannot be seen."""
    effect = name_effect(name)
    if effect is not None:
        return ranked(state, effect, node)
    family = state.facts.believed(name, state.function)
    return Value(family=family, instance=True) if family else UNKNOWN_VALUE


def ranked(state: State, effect: Effect, node: Located, axis: str = "") -> Value:
    """Return the value of something that tells the rank, how many ranks there are, or which are in a group."""
    return told(effect.kind, state.reason(node)._replace(axis=axis or effect.label))


def read_attribute(state: State, node: ast.Attribute) -> Value:
    """Return the value of an attribute."""
    return attribute(state, state.value(node.value), node)


def attribute(state: State, receiver: Value, node: ast.Attribute) -> Value:
    """Return an attribute of a value."""
    name = node.attr
    if receiver.name and not receiver.instance:
        return _imported(f"{receiver.name}.{name}")
    known = _member(state, receiver.target, name) if isinstance(receiver.target, ClassNode) else None
    if known is not None:
        state.read |= known.sources
        return known
    if name == "module" and receiver.wrapped:
        return receiver._replace(wrapped="")
    effect = attribute_effect(name)
    if effect is not None and not receiver.is_rank:
        return ranked(state, effect, node)
    family = state.facts.believed(name, state.function)
    if family:
        return Value(family=family, instance=True)
    return _ATTRIBUTES.get(name, _other_attribute)(receiver, name)


def _shape(receiver: Value, name: str) -> Value:
    shape = length_of(receiver)._replace(family="shape", length=receiver.length)
    return shape._replace(reason=shape.reason or (receiver.reason if receiver.length else None))


def _loss(receiver: Value, name: str) -> Value:
    is_own = receiver.is_local
    return receiver._replace(scale="mean", family="") if is_own else _other_attribute(receiver, name)


def _other_attribute(receiver: Value, name: str) -> Value:
    if receiver.family in ("trainer", "lightning_trainer") and name.endswith("_dataloaders"):
        return Value(0, family="loader", instance=True, wrapped="prepared")
    kept = Value(receiver.varies, receiver.reason, grad=receiver.grad, cut=receiver.cut, sources=receiver.sources)
    return kept._replace(measure=receiver.measure) if name in _KEPT else kept


_ATTRIBUTES: dict[str, Callable[[Value, str], Value]] = {
    **dict.fromkeys(("device", "dtype", "ndim", "requires_grad", "training"), lambda receiver, name: UNKNOWN_VALUE),
    **dict.fromkeys(("data", "grad"), lambda receiver, name: receiver),
    **dict.fromkeys(("batch_size", "num_graphs"), lambda receiver, name: Value(UNKNOWN, family="length", dtype="int")),
    "shape": _shape,
    "loss": _loss,
}


def _member(state: State, owner: ClassNode, name: str) -> Value | None:
    for each in state.index.lineage(owner):
        if name in each.methods:
            method = each.methods[name]
            if method.is_property:
                return state.facts.read(("return", method, ""), state.function) or UNKNOWN_VALUE
            return Value(0, target=method)
        known = state.facts.read(("attribute", each, name), state.function)
        if known is not None and (known.is_local or known.family or known.target or known.wrapped or known.name):
            return known
        said = of_attribute(state.facts, each, name)
        if said.instance:
            return said
    return None


def environment(state: State, name: str, node: Located) -> Value:
    """Return the value of an environment variable."""
    kind = environment_kind(name)
    return ranked(state, Effect(kind), node) if kind else UNKNOWN_VALUE


def length_of(receiver: Value) -> Value:
    """Return the length of something; of a batch it is known to be this rank's own, though mostly equal."""
    return Value(
        UNKNOWN, receiver.reason if receiver.family in ("batch", "part") else None, family="length", dtype="int"
    )
