"""Statements that give values to names."""

from __future__ import annotations

import ast

from distlint.analysis.arithmetic import arithmetic, note_division
from distlint.analysis.changes import GROW, is_new
from distlint.analysis.events import Event, Exit
from distlint.analysis.formula import UNKNOWN
from distlint.analysis.measures import guessed
from distlint.analysis.state import State
from distlint.analysis.tensors import METHODS_OF_TENSORS
from distlint.analysis.value import Value
from distlint.syntax import dotted


def expression_statement(state: State, node: ast.Expr) -> str:
    """Interpret what is called for what it does."""
    state.value(node.value)
    event = state.latest
    if event is not None and event.node is node.value and isinstance(node.value, ast.Call):
        event.is_dropped = True
        if event.kind == "exit":
            state.block.append(Exit("raise" if _tells_of_failure(event) else "exit"))
            return "raise"
    return ""


def assign(state: State, node: ast.Assign) -> str:
    """Interpret an assignment."""
    value = _assigned_value(state, node.value, node.targets)
    for target in node.targets:
        state.bind(target, _given_back(state, target, node.value, value))
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Call) and not _is_seen(state, node.value):
            _believe(state, target.elts, node.value)
    _note_owned(state, node.targets, node.value)
    return ""


def _assigned_value(state: State, node: ast.expr, targets: list[ast.expr]) -> Value:
    """The value of an expression; what is only computed with, into a name, is not read before that name is."""
    read, owned = state.read, state.owned
    value = state.value(node)
    if not value.sources <= read and all(isinstance(each, ast.Name) for each in targets) and _only_computes(node):
        state.read = read | (state.read - value.sources)
        state.owned = owned
    return value


def _note_owned(state: State, targets: list[ast.expr], node: ast.expr) -> None:
    for target in targets:
        if isinstance(target, ast.Name):
            is_owned = len(targets) == 1 and is_new(node)
            if is_owned != (target.id in state.owned):
                state.owned ^= {target.id}


def _given_back(state: State, target: ast.expr, node: ast.expr, value: Value) -> Value:
    """``state = update(state, batch)``: what an unseen function is given and gives back is what it was before."""
    if not isinstance(node, ast.Call) or not is_plain(target):
        return value
    if _is_seen(state, node):
        return value
    if not any(is_plain(each) and dotted(each) == dotted(target) for each in node.args):
        return value
    before = state.value(target)
    return before._replace(constant=None, formula=None) if before.varies < value.varies else value


def _is_seen(state: State, node: ast.Call) -> bool:
    """Whether it is known what a call returns."""
    return any((id(node), kind) in state.by_node for kind in ("call", "forward", "collective"))


def _believe(state: State, targets: list[ast.expr], node: ast.Call) -> None:
    """What is measured by parts of an unseen function's result, by the names that they are given."""
    for name in (each.id for each in targets if isinstance(each, ast.Name)):
        part = state.names[name]
        if part.is_share and part.measure is None and part.family != "example":
            state.names[name] = part._replace(measure=guessed(name, node, state.index.text_of(node)))


def annotated(state: State, node: ast.AnnAssign) -> str:
    """Interpret an assignment with an annotation."""
    if node.value is not None:
        state.bind(node.target, _assigned_value(state, node.value, [node.target]))
        _note_owned(state, [node.target], node.value)
    return ""


def augmented(state: State, node: ast.AugAssign) -> str:
    """Interpret ``x += y``."""
    read, owned = state.read, state.owned
    before = state.value(node.target)
    if isinstance(node.target, ast.Name):
        state.read, state.owned = read, owned
    added = _assigned_value(state, node.value, [node.target])
    if isinstance(node.op, ast.Add) and before.family == "list":
        state.emit(GROW, node.target, receiver=before, args=(added,))
    if isinstance(node.op, ast.Div | ast.FloorDiv):
        note_division(state, before, added, node.target)
    result = arithmetic(state, node.op, before, added, node.target)
    if not before.scale and added.scale and before.varies <= UNKNOWN:
        result = result._replace(scale=added.scale)
    state.bind(node.target, result._replace(sources=before.sources | added.sources))
    return ""


def _only_computes(node: ast.expr) -> bool:
    """True if an expression has no call but of methods of tensors that are known."""
    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return all(isinstance(each, ast.Attribute) and each.attr in METHODS_OF_TENSORS for each in calls)


def _tells_of_failure(event: Event) -> bool:
    """True if the process ends with a status of failure, so that the launcher stops the others."""
    return bool(event.args) and event.args[0].constant != 0 and event.args[0].family != "none"


def is_plain(node: ast.expr) -> bool:
    """True if an expression is a name or an attribute."""
    return isinstance(node, ast.Name | ast.Attribute)
