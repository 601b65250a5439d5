"""What is changed in place: tensors by collectives and methods, lists that something is added to."""

from __future__ import annotations

import ast

from distlint.analysis.events import Event, Step
from distlint.analysis.joining import join
from distlint.analysis.measures import measure_in
from distlint.analysis.metrics import runs_over_examples
from distlint.analysis.orders import order_with
from distlint.analysis.state import State
from distlint.analysis.targets import is_own_key
from distlint.analysis.tensors import REDUCTIONS
from distlint.analysis.value import Value
from distlint.api import Effect

_KEEPS_STORAGE = frozenset({"detach", "view", "squeeze", "unsqueeze", "flatten", "narrow", "reshape", "contiguous"})
_FRESH = frozenset(
    {"clone", "item", "new_tensor", "tensor", "stack", "cat", "mean", "sum", "zeros", "ones", "full", "empty"}
)
_FRESH |= {"zeros_like", "ones_like", "empty_like", "full_like"}
_MAY_BE_SAME = frozenset({"to", "cuda", "cpu", "float", "double", "half", "long", "int", "bfloat16"})
GROW = Effect("grow", "grow")  # of a list or dict that something is added to


def note_collective(state: State, event: Event) -> None:
    """Note a collective; what it changes in place is the same everywhere from now on."""
    state.block.append(Step(event.label, state.place(event.node), event, event.effect, event.group))
    for position in event.effect.changes:
        node = event.argument_node(position, ("tensor", "object_list", "tensor_list", "input")[0])
        value = event.argument(position, "tensor")
        if node is None or value is None:
            continue
        root, _ = root_of(node)
        event.is_lost = root is None and is_new(node)
        if root is not None:
            event.is_owned = isinstance(root, ast.Name) and root.id in state.owned
            state.bind(root, event.result._replace(family=value.family, dtype=value.dtype))
            if event.is_owned and isinstance(root, ast.Name):
                state.owned |= {root.id}
            _change_all(state, root, event.result)


def _change_all(state: State, item: ast.expr, result: Value) -> None:
    """Where a loop changes one item after another in place, all are changed after it."""
    for names, iterable, changed in state.turns:
        if isinstance(item, ast.Name) and item.id in names:
            is_call = isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Attribute)
            whole = iterable.func.value if is_call else iterable  # type: ignore[attr-defined]
            if isinstance(whole, ast.Name) and whole.id in state.names:
                changed[whole.id] = result._replace(family=state.names[whole.id].family)


def add_to(state: State, node: ast.expr, known: Value, value: Value) -> None:
    """What is added to a list is in it from now on."""
    given, (root, _) = node, root_of(node)
    while isinstance(node, ast.Subscript) and node is not root and not isinstance(node.value, ast.Name):
        node = node.value
    is_part = isinstance(node, ast.Attribute) and node is not root  # of an object that is more than this list
    if root is not None and known.target is None and not known.name and not is_part:
        is_example = any(guard.kind == "for" and runs_over_examples(guard.test) for guard in state.guards)
        measure = None if is_example else measure_in(value)
        added = value._replace(scale="", elements=(), keys=(), constant=None, formula=None, measure=measure)
        joined = join(known._replace(elements=(), keys=()), added)._replace(order=order_with(known, value))
        if isinstance(given, ast.Subscript) and is_own_key(state, root, given.slice):
            joined = joined._replace(order="keys")
        length = known.length or any(guard.test.is_local for guard in state.guards if guard.kind == "branch")
        family = state.value(root).family if isinstance(given, ast.Subscript) else known.family
        state.bind(root, joined._replace(family=family, length=length))


def change(state: State, node: ast.expr, value: Value) -> Value:
    """A tensor that is changed in place."""
    root, _ = root_of(node)
    if isinstance(root, ast.Name) and root is node:
        state.bind(root, value)
    return value


def is_new(node: ast.expr) -> bool:
    """True if an expression makes a new tensor or list, which nothing else holds."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _FRESH:
            return True
        if node.func.attr not in _MAY_BE_SAME and node.func.attr not in _KEEPS_STORAGE:
            return False
        node = node.func.value
    if isinstance(node, ast.List):
        return all(map(is_new, node.elts))
    if isinstance(node, ast.ListComp):
        return is_new(node.elt)
    return isinstance(node, ast.BinOp | ast.Constant)


def root_of(node: ast.expr) -> tuple[ast.expr | None, bool]:
    """What is changed where an expression is changed in place, and whether nobody else can see that."""
    while True:
        if isinstance(node, ast.Name):
            return node, False
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.attr not in ("data", "grad"):
                return node, False
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS_STORAGE:
            node = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return None, node.func.attr in _FRESH
        else:
            return None, isinstance(node, ast.BinOp)


def note_reduction(state: State, name: str, node: ast.Call, value: Value) -> None:
    """Note that one number is made of what a collective has returned."""
    if value.sources and name in REDUCTIONS:
        state.emit(Effect("reduced", name), node, args=(value,))
