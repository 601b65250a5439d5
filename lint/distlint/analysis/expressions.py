"""Values of expressions, by the type of their node."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from distlint.analysis.arithmetic import binary, compare, unary
from distlint.analysis.calls import value_of_call
from distlint.analysis.choices import and_or, conditional, note_loop
from distlint.analysis.conditions import flag
from distlint.analysis.events import Guard
from distlint.analysis.items import dict_written, element, subscript, written_out
from distlint.analysis.joining import combine
from distlint.analysis.names import read_attribute, read_name
from distlint.analysis.state import State
from distlint.analysis.value import NONE_VALUE, UNKNOWN_VALUE, Value


def _constant(state: State, node: ast.Constant) -> Value:
    if node.value is None:
        return NONE_VALUE
    formula = flag(node.value) if isinstance(node.value, bool) else None
    return Value(0, constant=node.value, formula=formula)


def _text(state: State, node: ast.JoinedStr) -> Value:
    parts = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    elements = tuple(state.value(part) for part in parts)
    return combine(list(elements))._replace(family="text", elements=elements)


def _starred(state: State, node: ast.Starred) -> Value:
    return state.value(node.value)


def _lambda(state: State, node: ast.Lambda) -> Value:
    state.captured |= {each.id for each in ast.walk(node.body) if isinstance(each, ast.Name)}
    return Value(0, family="lambda")


def _walrus(state: State, node: ast.NamedExpr) -> Value:
    value = state.value(node.value)
    state.bind(node.target, value)
    return value


def _comprehension(state: State, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
    names = dict(state.names)
    own = {each.id for part in node.generators for each in ast.walk(part.target) if isinstance(each, ast.Name)}
    kept = own & state.assigned
    outer = UNKNOWN_VALUE
    with state.section() as section:
        for each in node.generators:
            outer = state.value(each.iter)
            state.bind(each.target, element(state, outer))
            state.guards = (*state.guards, Guard("for", outer, each.iter))
            for test in each.ifs:
                value = state.value(test)
                outer = outer._replace(length=outer.length or value.is_local)
                state.guards = (*state.guards, Guard("branch", value, test))
        if isinstance(node, ast.DictComp):
            state.value(node.key)
        part = state.value(node.value if isinstance(node, ast.DictComp) else node.elt)
        inside = combine([part])._replace(measure=part.measure, reduced=part.reduced)
    _forget(state, own, names, kept)
    note_loop(state, node, outer, section.body)
    family = {ast.SetComp: "set", ast.DictComp: "dict"}.get(type(node), "list")
    order = outer.order
    if isinstance(node, ast.SetComp):
        order = "texts" if isinstance(node.elt, ast.JoinedStr) else "set"
    return inside._replace(family=family, length=outer.length, order=order)


def _forget(state: State, own: set[str], before: dict[str, Value], kept: set[str]) -> None:
    """Give the variables of a comprehension back what they were outside; what ``:=`` has set stays."""
    state.assigned -= own - kept
    for name in own:
        if name in before:
            state.names[name] = before[name]
        else:
            state.names.pop(name, None)


EXPRESSIONS: dict[type[ast.expr], Callable[[State, Any], Value]] = {
    ast.Constant: _constant,
    ast.Name: read_name,
    ast.Attribute: read_attribute,
    ast.Subscript: subscript,
    ast.BoolOp: and_or,
    ast.UnaryOp: unary,
    ast.Compare: compare,
    ast.BinOp: binary,
    ast.IfExp: conditional,
    ast.Tuple: written_out,
    ast.List: written_out,
    ast.Set: written_out,
    ast.Dict: dict_written,
    ast.JoinedStr: _text,
    ast.Starred: _starred,
    ast.Lambda: _lambda,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _comprehension,
    ast.NamedExpr: _walrus,
    ast.Call: value_of_call,
}
