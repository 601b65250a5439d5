"""Two ways on, and what they make of a value."""

from __future__ import annotations

import ast

from distlint.analysis.events import Branch, Guard, Loop, Node
from distlint.analysis.formula import DATA, FALSE, SAME, TRUE, Formula, every, negate, some, varies
from distlint.analysis.joining import combine, join
from distlint.analysis.state import State
from distlint.analysis.value import Value
from distlint.api import function_effect
from distlint.syntax import Located


def note_branch(state: State, test: Value, node: Located, then: list[Node], other: list[Node]) -> None:
    """Note two ways on."""
    if then or other:
        state.block.append(Branch(state.as_formula(test, node), tuple(then), tuple(other), state.place(node), node))


def merged(state: State, first: Value, second: Value, test: Value, node: Located) -> Value:
    """Return the value of what two ways make of it; where ranks go different ways, they differ in it."""
    if first is second or (first == second and (first.constant is not None or first.family == "none")):
        return first
    if test.formula is not None and test.formula == TRUE:  # as in a job of several ranks
        return first
    if test.formula is not None and test.formula == FALSE:
        return second
    formula = _chosen(state, first, second, test, node)
    value = join(first, second)
    if first.reduced and second.reduced and value.varies == SAME:
        return value  # the same collective on both ways
    if test.is_local and test.varies > value.varies:
        reason = test.reason or state.reason(node)
        is_alike = reason.unseen or first == second  # for all that is known: the same may be computed on both ways
        value = value._replace(varies=test.varies, reason=reason._replace(control=True, unseen=is_alike))
    if test.varies == DATA and first.family == second.family == "dict" and _has_other_keys(first, second):
        value = value._replace(length=True)  # what runs over it turns as often as this rank's data say
    if value.wrapped and not (first.wrapped and second.wrapped) and asks_whether_wrapped(state, node):
        value = value._replace(wrapped="")
    return value._replace(formula=formula)


def _has_other_keys(first: Value, second: Value) -> bool:
    """True if of two dicts that are known one has entries that the other lacks."""
    is_known = all(each.keys or each.varies == SAME for each in (first, second))
    return is_known and set(first.keys) != set(second.keys)


def asks_whether_wrapped(state: State, node: Located) -> bool:
    """True if a test is there to find the model inside of a wrapper."""
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call) and len(each.args) == 2)
    return any(_is_of_wrapper(state, call) for call in calls)


def _is_of_wrapper(state: State, call: ast.Call) -> bool:
    asked = call.args[1]
    if isinstance(asked, ast.Constant):
        return asked.value == "module"
    types = asked.elts if isinstance(asked, ast.Tuple) else [asked]
    effects = (function_effect(state.index.qualify(each, state.function)) for each in types)
    return any(effect is not None and effect.kind == "wrap" for effect in effects)


def _chosen(state: State, first: Value, second: Value, test: Value, node: Located) -> Formula | None:
    if first.formula is None or second.formula is None:
        return None
    asked = state.as_formula(test, node)
    return some([every([asked, first.formula]), every([negate(asked), second.formula])])


def conditional(state: State, node: ast.IfExp) -> Value:
    """Return the value of ``x if test else y``."""
    test = state.value(node.test)
    arms, values = [], []
    for taken, part in ((True, node.body), (False, node.orelse)):
        with state.section(Guard("branch", test, node.test, taken)) as arm:
            values.append(state.value(part))
        arms.append(arm.body)
    note_branch(state, test, node.test, *arms)
    return merged(state, values[0], values[1], test, node.test)


def and_or(state: State, node: ast.BoolOp) -> Value:
    """Return the value of ``and`` and ``or``; what follows is reached only by some answers."""
    values, bodies, is_and = [], [], isinstance(node.op, ast.And)
    guards: list[Guard] = []
    for part in node.values:
        with state.section(*guards) as section:
            values.append(state.value(part))
        bodies.append(section.body)
        guards.append(Guard("and", values[-1], part, is_and))
    formulas = [state.as_formula(value, part) for value, part in zip(values, node.values, strict=True)]
    rest: list[Node] = []
    for value, part, body in zip(values[::-1], node.values[::-1], bodies[::-1], strict=True):
        with state.section() as both:
            state.block += body
            note_branch(state, value, part, *((rest, []) if is_and else ([], rest)))
        rest = both.body
    state.block += rest
    formula = every(formulas) if is_and else some(formulas)
    return combine(values)._replace(formula=formula, varies=max(varies(formula), 0))


def note_loop(state: State, node: Located, value: Value, block: list[Node]) -> None:
    """Note statements that run again and again."""
    if block:
        state.block.append(Loop(tuple(block), state.place(node), value.varies, node))
