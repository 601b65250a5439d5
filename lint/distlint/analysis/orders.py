"""In which order a value's elements come, where that is one process's own affair."""

from __future__ import annotations

import ast

from distlint.analysis.value import Value, dtype_of

_TESTS = frozenset({"endswith", "isdigit", "isinstance", "startswith"})


def order_of(elements: tuple[Value, ...]) -> str:
    """Return the order of a set of these: numbers have the same hash in every process, strings have not."""
    if elements and all(isinstance(each.constant, int | float) for each in elements):
        return ""
    return "texts" if elements and all(isinstance(each.constant, str) for each in elements) else "set"


def order_of_set(values: tuple[Value, ...]) -> str:
    """Return the order of ``set(...)``: "" where it is empty, of a range, or differs from rank to rank anyway."""
    if not values or values[0].family == "range" or values[0].is_local:
        return ""
    if values[0].elements:
        return order_of(values[0].elements)
    return values[0].order if values[0].order == "texts" else "set"


def order_with(known: Value, added: Value) -> str:
    """Return the order of a set or another container to which an element is added."""
    if known.family != "set" or known.order or added.is_local or dtype_of(added) == "int":
        return known.order
    return "texts" if isinstance(added.constant, str) or added.family == "text" else "set"


def leaves_ties(call: ast.Call) -> bool:
    """True if what a list is sorted by has few values, so that many elements stay in the order in which they came."""
    keys = (each.value for each in call.keywords if each.arg == "key")
    return any(_has_few_values(key.body) if isinstance(key, ast.Lambda) else _is_len(key) for key in keys)


def _is_len(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "len"


def _has_few_values(node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return _has_few_values(node.body) and _has_few_values(node.orelse)
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in _TESTS
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_not or isinstance(node, ast.Constant | ast.Compare)


def order_of_sets(*values: Value) -> str:
    """Return the order of what an operation makes of sets and views of keys; "" if these are none."""
    orders = {value.order for value in values}
    if orders == {"texts"}:
        return "texts"
    is_set = not orders.isdisjoint({"set", "texts"}) or any(value.family == "keys" for value in values)
    return "set" if is_set else ""
