"""What is given a value: names, attributes, items, parts of tuples."""

from __future__ import annotations

import ast

from distlint.analysis.formula import DATA
from distlint.analysis.items import element, key_of_item, with_item
from distlint.analysis.joining import join
from distlint.analysis.state import State
from distlint.analysis.value import UNKNOWN_VALUE, Value
from distlint.api import Effect
from distlint.syntax import ClassNode

_PUT = Effect("put", "put")  # of an item that a list or dict is given under a key


def bind(state: State, target: ast.expr, value: Value) -> None:
    """Give a value to a name, an attribute, or the parts of a tuple."""
    if isinstance(target, ast.Name):
        state.names[target.id] = value
        state.assigned.add(target.id)
        if value.sources and target.id.startswith("_"):
            state.read |= value.sources
        elif value.sources:
            state.named |= value.sources
    elif isinstance(target, ast.Tuple | ast.List):
        _bind_parts(state, target.elts, value)
    elif isinstance(target, ast.Starred):
        state.bind(target.value, value._replace(elements=()))
    elif isinstance(target, ast.Attribute):
        owner = state.value(target.value).target
        state.read |= value.sources
        if isinstance(owner, ClassNode):
            state.facts.tell(("attribute", owner, target.attr), value)
    elif isinstance(target, ast.Subscript):
        _bind_item(state, target, value)


def _bind_parts(state: State, targets: list[ast.expr], value: Value) -> None:
    if len(value.elements) == len(targets) and not any(isinstance(each, ast.Starred) for each in targets):
        for each, part in zip(targets, value.elements, strict=True):
            state.bind(each, part)
        return
    if value.family == "deepspeed" and targets:  # engine, optimizer, loader, scheduler
        state.bind(targets[0], value)
        targets, value = targets[1:], UNKNOWN_VALUE
    part = element(state, value)
    if part.family == "example" != value.family:
        part = part._replace(family="")  # a part of one result, no example of many
    for each in targets:
        state.bind(each, part)


def _bind_item(state: State, target: ast.Subscript, value: Value) -> None:
    """An item of a list or dict is in it from now on; the rank's own part of what was gathered has its gradient."""
    index = state.value(target.slice)
    state.emit(_PUT, target, args=(value,))
    if isinstance(target.value, ast.Name):
        known = state.names.get(target.value.id)
        if known is not None and known.target is None:
            if index.family in ("rank", "local_rank"):
                known = known._replace(cut=None)
            inside = value._replace(constant=None, formula=None, elements=(), keys=(), family=known.family)
            joined = join(known, inside)
            if is_own_key(state, target.value, target.slice):
                joined = joined._replace(order="keys")
            keys, elements = with_item(known, key_of_item(state, target.slice, index), value)
            joined = joined._replace(scale="", elements=elements, keys=keys, length=known.length)
            state.bind(target.value, joined)
            return
    state.read |= value.sources


def is_own_key(state: State, root: ast.expr, key: ast.expr) -> bool:
    """Whether a dict gets a key that comes from this rank's batch: an element of it, no name of an entry."""
    index = state.value(key)
    return state.value(root).family == "dict" and index.varies == DATA and index.family != "part"
