"""Statements, by the type of their node, and how they end."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from distlint.analysis.assignments import annotated, assign, augmented, expression_statement
from distlint.analysis.choices import asks_whether_wrapped
from distlint.analysis.events import Event, Exit, Step
from distlint.analysis.flow import for_, if_, match_, try_, while_, with_
from distlint.analysis.formula import DATA, SAME
from distlint.analysis.joining import join, through_unseen
from distlint.analysis.state import State
from distlint.api import Effect
from distlint.syntax import ClassNode

_TRAINER_BACKWARD = Effect("backward", "backward", wrapped="prepared")


def _names_of_others(state: State, node: ast.Global | ast.Nonlocal) -> str:
    state.captured |= set(node.names)
    return ""


def _return(state: State, node: ast.Return) -> str:
    value = state.value(node.value)
    guards = [guard.test for guard in state.guards if guard.kind in ("branch", "exit return")]
    rank = max((test.varies for test in guards), default=SAME)
    if state.returns is not None and rank >= DATA and value != state.returns:
        reason = next(test.reason for test in guards if test.varies == rank)
        is_other = value.constant is not None and state.returns.constant is not None
        value = value._replace(varies=max(rank, value.varies), reason=value.reason or reason)
        value = value if is_other else through_unseen(value)
    if value.wrapped and state.returns is not None and not state.returns.wrapped:
        is_told = any(asks_whether_wrapped(state, guard.node) for guard in state.guards)
        value = value._replace(wrapped="" if is_told else value.wrapped)
    state.returned[id(node)] = node, value
    state.returns = value if state.returns is None else join(state.returns, value)
    state.read |= value.sources
    if node.value is not None and value.family != "none" and _is_trained_with_result(state):
        event = Event(_TRAINER_BACKWARD, node.value, state.function, state.guards, result=value)
        state.block.append(Step("backward", state.place(node), event, _TRAINER_BACKWARD))
    state.block.append(Exit("return"))
    return "return"


def _is_trained_with_result(state: State) -> bool:
    """True in a step whose result Lightning makes the backward pass of, if it is not None."""
    owner = state.function.owner
    if owner is None or state.function.name != "training_step" or state.facts.family(owner) != "lightning_module":
        return False
    if any(event.kind == "backward" for event in state.events):
        return False
    name = "automatic_optimization"
    lineage = list(state.index.lineage(owner))
    is_set = any(state.facts.read(("attribute", each, name), state.function) for each in lineage)
    return not is_set and not any(_declares(each, name) for each in lineage)


def _raise(state: State, node: ast.Raise) -> str:
    state.value(node.exc)
    state.block.append(Exit("raise"))
    return "raise"


def _continue(state: State, node: ast.Continue) -> str:
    state.block.append(Exit("continue"))
    return "continue"


def _break(state: State, node: ast.Break) -> str:
    state.block.append(Exit("break"))
    return "break"


def _assert(state: State, node: ast.Assert) -> str:
    state.value(node.test)
    return ""


def _declares(owner: ClassNode, name: str) -> bool:
    """True if the body of a class gives it an attribute or a property of this name."""
    assigned = (target for each in owner.node.body if isinstance(each, ast.Assign) for target in each.targets)
    return name in owner.methods or any(isinstance(target, ast.Name) and target.id == name for target in assigned)


STATEMENTS: dict[type[ast.stmt], Callable[[State, Any], str]] = {
    ast.Expr: expression_statement,
    ast.Assign: assign,
    ast.AnnAssign: annotated,
    ast.AugAssign: augmented,
    ast.If: if_,
    ast.For: for_,
    ast.AsyncFor: for_,
    ast.While: while_,
    ast.Try: try_,
    ast.Global: _names_of_others,
    ast.Nonlocal: _names_of_others,
    ast.With: with_,
    ast.AsyncWith: with_,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.Continue: _continue,
    ast.Break: _break,
    ast.Assert: _assert,
}
if hasattr(ast, "Match"):
    STATEMENTS[ast.Match] = match_
if hasattr(ast, "TryStar"):
    STATEMENTS[ast.TryStar] = try_
