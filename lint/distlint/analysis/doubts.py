"""What ranks may disagree about though nothing says so: whether a container has any entries."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from distlint.analysis.formula import SAME, UNKNOWN
from distlint.analysis.value import Value
from distlint.syntax import ClassNode, FunctionNode

_KINDS = frozenset({"dict", "list", "set"})
_KNOWN: WeakKeyDictionary[ClassNode, set[str]] = WeakKeyDictionary()
_FILLS = frozenset({"add", "append", "extend", "setdefault", "update"})


def doubt_of(value: Value, node: ast.AST, function: FunctionNode) -> str:
    """Return "entries" where the truth of a value asks whether something that is filled at run time is empty."""
    if value.varies > UNKNOWN or value.elements or value.reduced or value.sources:
        return ""
    if isinstance(node, ast.Name):
        return "entries" if value.family in _KINDS and value.varies > SAME else ""
    owner = function.owner
    is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return "entries" if is_own and owner is not None and node.attr in _refilled(owner) else ""  # type: ignore[attr-defined]


def _refilled(owner: ClassNode) -> set[str]:
    """The attributes that methods fill and empty again; remembered as long as the file is."""
    if owner not in _KNOWN:
        _KNOWN[owner] = _read_refilled(owner)
    return _KNOWN[owner]


def _read_refilled(owner: ClassNode) -> set[str]:
    filled: set[str] = set()
    emptied: set[str] = set()
    for name, method in owner.methods.items():
        if name != "__init__":
            for node in ast.walk(method.node):
                filled.update(_filled_by(node))
                emptied.update(_emptied_by(node))
    return filled & emptied


def _filled_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        yield from _own(node.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
        yield from _own(node.func.value)


def _emptied_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Dict):
        if not list(ast.iter_child_nodes(node.value))[1:]:
            yield from (name for target in node.targets for name in _own(target))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "clear":
        yield from _own(node.func.value)


def _own(node: ast.expr) -> Iterator[str]:
    """The name of an attribute of ``self``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        yield node.attr
