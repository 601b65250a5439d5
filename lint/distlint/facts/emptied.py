"""Which attributes something empties, deletes or assigns anew: a list that is among them is not for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.outline import EMPTIERS
from distlint.facts.tree import argument, is_name, tail, text_of, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

ANY = "*"
_EMPTYING_WORDS = ("clear", "empty", "flush", "free", "reset")


def emptied(facts: ModuleFacts) -> set[str]:
    """Attributes that anything in the file empties, deletes or assigns outside of ``__init__``, on any object."""
    found: set[str] = set()
    for node in walk(facts.module):
        if isinstance(node, cst.Call):
            found.update(_emptied_by_call(facts, node))
        elif isinstance(node, cst.Del):
            found.update(_attributes(facts, node.target))
        elif isinstance(node, cst.Assign | cst.AnnAssign) and node.value is not None:
            function = facts.function_of(node)
            if function is not None and function.name.value == "__init__":
                continue
            for target in [each.target for each in node.targets] if isinstance(node, cst.Assign) else [node.target]:
                found.update(_attributes(facts, target) if not isinstance(target, cst.Name) else ())
    return found


def _emptied_by_call(facts: ModuleFacts, node: cst.Call) -> Iterator[str]:
    """``x.clear()``; ``reset(self.x)``: whatever a function may do with what it is given."""
    name = tail(node.func) or ""
    if isinstance(node.func, cst.Attribute) and name in EMPTIERS:
        yield from _attributes(facts, node.func.value)
    if name in ("setattr", "delattr"):
        yield text_of(argument(node, 1, "name")) or ANY
    elif facts.local_function(node) is not None or any(word in name for word in _EMPTYING_WORDS):
        for arg in node.args:
            yield from _attributes(facts, arg.value)


def _attributes(facts: ModuleFacts, node: cst.BaseExpression, depth: int = 0) -> Iterator[str]:
    """The names of the attributes that an expression may stand for."""
    if isinstance(node, cst.Subscript):
        yield from _attributes(facts, node.value, depth)
    elif isinstance(node, cst.Attribute):
        yield node.attr.value
    elif isinstance(node, cst.List | cst.Tuple):
        for element in node.elements:
            yield from _attributes(facts, element.value, depth)
    elif isinstance(node, cst.Call):
        if is_name(node.func, "getattr"):
            yield text_of(argument(node, 1, "name")) or ANY
        elif isinstance(node.func, cst.Attribute):  # for outputs in self.parts.values()
            yield from _attributes(facts, node.func.value, depth)
    elif isinstance(node, cst.Name) and depth < 3:
        for definition in reaching(facts, node):
            if definition.value is not None:
                yield from _attributes(facts, definition.value, depth + 1)
