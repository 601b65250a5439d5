"""Lists that a class keeps on ``self``: what adds to them, what reads them, what empties them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from distlint.definitions import unsubscripted
from distlint.source import Class, Source, dotted, last, object_of, self_attribute

EPOCH_END = re.compile(r"(?:on_)?(train|training|validation|test)_epoch_end")
_EMPTIES = frozenset({"clear", "pop", "popleft", "popitem"})
_READS = re.compile(
    r"(?:torch|numpy|statistics|pandas|math)\.[\w.]+|len|sum|max|min|print|enumerate|zip|list|sorted"
    r"|map|float|tuple|any|all|self\.(?:print|log|all_gather)"
)


def grown(
    source: Source, method: cst.FunctionDef
) -> Iterator[tuple[cst.CSTNode, str, cst.BaseExpression]]:
    """Yield what adds to an attribute of ``self``: the node, the attribute, what is added."""
    for call in source.below(method, cst.Call):
        owner = object_of(call)
        if last(call.func) in ("append", "extend") and owner is not None:
            name = self_attribute(unsubscripted(owner))
            if name and len(call.args) == 1:
                yield call, name, call.args[0].value
    for added in source.below(method, cst.AugAssign):
        name = self_attribute(unsubscripted(added.target))
        is_list = isinstance(added.value, cst.List)
        if name and isinstance(added.operator, cst.AddAssign) and is_list:
            yield added, name, added.value


def hooks(owner: Class) -> Iterator[cst.FunctionDef]:
    """Yield the hooks of a class that end an epoch."""
    yield from (each for name, each in owner.methods.items() if EPOCH_END.fullmatch(name))


def reads(source: Source, owner: Class, hook: cst.FunctionDef, name: str) -> bool:
    """Return whether a hook mentions an attribute, one call deep."""
    inner = [
        owner.methods[called]
        for call in source.below(hook, cst.Call)
        if (called := self_attribute(call.func)) in owner.methods
    ]
    return any(
        self_attribute(each) == name
        for function in (hook, *inner)
        for each in source.below(function, cst.Attribute)
    )


def is_list(owner: Class, name: str) -> bool:
    """Return whether an attribute is only ever given a list, or a dict of such."""
    made = owner.attributes.get(name, [])
    return bool(made) and all(
        isinstance(each, cst.List | cst.Dict | cst.DictComp | cst.ListComp)
        or (isinstance(each, cst.Call) and last(each.func) in ("list", "defaultdict"))
        for each in made
    )


def may_empty(source: Source, owner: Class, name: str) -> bool:
    """Return whether anything empties an attribute, or might, being handed it or its object."""
    for call in source.nodes(cst.Call):
        owned = unsubscripted(object_of(call) or call.func)
        if last(call.func) in _EMPTIES and last(owned) == name:
            return True
        if source.name(call.func) in ("setattr", "getattr", "vars"):
            return True
    for method in owner.methods.values():
        for each in source.below(method, cst.Attribute):
            if self_attribute(each) == name and _is_handed_on(source, each, method):
                return True
        handed = (a.value for c in source.below(method, cst.Call) for a in c.args)
        if EPOCH_END.fullmatch(method.name.value) and any(dotted(a) == "self" for a in handed):
            return True
    return False


def _is_handed_on(source: Source, node: cst.Attribute, method: cst.FunctionDef) -> bool:
    below: cst.CSTNode = node
    parent = source.parent(below)
    while isinstance(parent, cst.Subscript) and parent.value is below:
        below, parent = parent, source.parent(parent)
    if isinstance(parent, cst.Del):
        return True
    if isinstance(parent, cst.AssignTarget | cst.AnnAssign):
        return method.name.value != "__init__"
    if isinstance(parent, cst.Arg):
        call = source.parent(parent)
        return isinstance(call, cst.Call) and not _READS.fullmatch(source.name(call.func))
    return isinstance(parent, cst.Element | cst.Assign | cst.DictElement | cst.Return)
