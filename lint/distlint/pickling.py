"""What cannot be pickled by its name: lambdas, and functions and classes inside of functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from distlint.apis import end_of
from distlint.collectives import called
from distlint.definitions import reaching
from distlint.source import Source

_DEEPEST = 6


def unpicklable(
    source: Source, node: cst.BaseExpression | None, depth: int = _DEEPEST
) -> Iterator[cst.CSTNode]:
    """Yield the lambdas, and the names of local functions and classes, that a value holds."""
    inner: list[cst.BaseExpression | None] = []
    match node:
        case cst.Lambda():
            yield node
        case cst.Name() if is_local(source, node):
            yield node
        case cst.Name():
            found = reaching(source, node).listed
            inner = [each.value for each in found if each.how != "element of"]
        case cst.Attribute():
            inner = [each for each in source.kept(node) if isinstance(each, cst.Lambda)]
        case cst.IfExp():
            inner = [node.body, node.orelse]
        case cst.BooleanOperation():
            inner = [node.left, node.right]
        case cst.List() | cst.Tuple() | cst.Set() | cst.Dict():
            inner = [each.value for each in node.elements]
        case cst.Call() if keeps(source, node):
            inner = [each.value for each in node.args]
        case cst.Call() if is_local_class(source, node.func) or _returns_local(source, node):
            yield node.func
    for each in inner if depth else ():
        yield from unpicklable(source, each, depth - 1)


def keeps(source: Source, call: cst.Call) -> bool:
    """Return whether a call makes an object that holds what it is given."""
    name = source.name(call.func)
    is_transform = ".transforms." in name and end_of(name)[:1].isupper()
    return is_transform or name in ("functools.partial", "collections.defaultdict")


def is_local(source: Source, name: cst.CSTNode) -> bool:
    """Return whether a name is that of a function or class inside of a function around it."""
    return isinstance(name, cst.Name) and (
        _is_defined(source, name, source.nodes(cst.FunctionDef)) or is_local_class(source, name)
    )


def is_local_class(source: Source, name: cst.CSTNode) -> bool:
    """Return whether a name is that of a class inside of a function around it."""
    classes = source.nodes(cst.ClassDef)
    return isinstance(name, cst.Name) and _is_defined(source, name, classes)


def _is_defined(
    source: Source, name: cst.Name, nodes: Iterable[cst.FunctionDef | cst.ClassDef]
) -> bool:
    found = (each for each in nodes if each.name.value == name.value)
    scopes = (source.scope(each) for each in found)
    return any(isinstance(s, cst.FunctionDef) and source.is_within(name, s) for s in scopes)


def _returns_local(source: Source, call: cst.Call) -> bool:
    """Return whether a function of the file, or a method of the class, gives back a local one."""
    function = called(source, call)
    if function is None:
        return False
    given = [each.value for each in source.own(function, cst.Return)]
    return bool(given) and all(
        isinstance(each, cst.Lambda) or (each is not None and is_local(source, each))
        for each in given
    )
