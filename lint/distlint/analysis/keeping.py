"""What objects keep that cannot be pickled: lambdas, and functions and classes that are defined in a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis.containers import assignments
from distlint.analysis.module import Analysis
from distlint.syntax import ClassNode, FunctionNode, dotted, statements

TRANSFORMS = ("torchvision.transforms.", "monai.transforms.")
_KEEPERS = ("functools.partial", "numpy.vectorize", "collections.defaultdict", *TRANSFORMS)


def unpicklable(function: FunctionNode, value: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """What cannot be pickled among the things that a value keeps, with what it is."""
    left = [value]
    while left:
        node = left.pop(0)
        if isinstance(node, ast.Lambda):
            yield node, "a lambda"
        elif isinstance(node, ast.Name):
            yield from _named(function, node)
        else:
            left += _parts(function, node)


def _parts(function: FunctionNode, node: ast.expr) -> list[ast.expr]:
    """What a value that is written out keeps as it is."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.BoolOp | ast.Dict):
        return node.values
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return node.elts
    if isinstance(node, ast.Call) and dotted(node.func) == "getattr":
        return node.args[2:]
    if isinstance(node, ast.Call) and function.module.qualify(node.func, function).startswith(_KEEPERS):
        return [*node.args, *(each.value for each in node.keywords)]
    return []


def _named(function: FunctionNode, name: ast.Name) -> Iterator[tuple[ast.expr, str]]:
    """What a name stands for, of the function at hand or one around it."""
    around: FunctionNode | None = function
    while around is not None and around.name != "<module>":
        known = list(_values(around, name))
        for value in known:
            if isinstance(value, ast.Lambda):
                yield value, "a lambda"
        if known or any(each.arg == name.id for each in around.parameters):
            return
        inside = [each for each in statements(around.node.body) if getattr(each, "name", "") == name.id]
        if inside:
            kind = "class" if isinstance(inside[-1], ast.ClassDef) else "function"
            yield name, f"the local {kind} {name.id}"
            return
        around = around.parent


def _values(function: FunctionNode, name: ast.Name) -> Iterator[ast.expr]:
    """What a function has assigned to a name before."""
    for statement in statements(function.node.body):
        for target, value in assignments(statement):
            if statement.lineno < name.lineno and isinstance(target, ast.Name) and target.id == name.id:
                yield value


def kept(function: FunctionNode) -> Iterator[tuple[str, ast.expr]]:
    """What a function assigns to attributes of ``self``, by their names."""
    for statement in statements(function.node.body):
        for target, value in assignments(statement):
            receiver, _, attribute = dotted(target).partition(".")
            if receiver == "self" and "." not in attribute:
                yield attribute, value


def made_in_init(analysis: Analysis, owner: ClassNode) -> set[FunctionNode]:
    """Return ``__init__`` of a class with the methods that it calls."""
    left = [owner.methods[name] for name in ("__init__",) if name in owner.methods]
    found = set[FunctionNode]()
    while left:
        function = left.pop()
        if function not in found:
            found.add(function)
            targets = (event.target for event in analysis.reports[function].events if event.kind == "call")
            left += [target for target in targets if target is not None and target.is_method]
    return found


def is_only_called(function: FunctionNode, made: ast.Call) -> bool:
    """True if what a call makes is only called, directly or by a local name, by the function that makes it."""
    nodes = list(ast.walk(function.node))
    called = {id(each.func) for each in nodes if isinstance(each, ast.Call)}
    pairs = (pair for each in nodes for pair in assignments(each))
    names = {target.id for target, value in pairs if value is made and isinstance(target, ast.Name)}
    inside = set(map(id, ast.walk(made)))
    uses = [each for each in nodes if isinstance(each, ast.Name) and each.id in names and id(each) not in inside]
    read = [each for each in uses if isinstance(each.ctx, ast.Load)]
    return id(made) in called or (bool(names) and all(id(each) in called for each in read))
