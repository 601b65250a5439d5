"""Which values are already those of all ranks, so that averaging them changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.tree import is_name, positional, tail, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_GATHERS = frozenset(
    {
        "all_gather",
        "all_gather_cat",
        "all_gather_object",
        "all_reduce",
        "concat_all_gather",
        "gather",
        "gather_for_metrics",
        "gather_object",
        "reduce",
        "sync_and_compute",
    }
)
_DEEPEST = 5


def is_gathered(facts: ModuleFacts, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether a value is made from what a collective brought together."""
    if depth > _DEEPEST:
        return False
    for part in walk(node):
        if isinstance(part, cst.Call) and tail(part.func) in _GATHERS:
            return True
        if isinstance(part, cst.Name) and _is_read(facts, part):
            if _is_filled(facts, part):
                return True
            for definition in reaching(facts, part):
                if definition.value is not None and is_gathered(facts, definition.value, depth + 1):
                    return True
    return False


def _is_read(facts: ModuleFacts, name: cst.Name) -> bool:
    parent = facts.parents.get(name)
    is_label = isinstance(parent, cst.Arg) and parent.keyword is name
    return not is_label and not (isinstance(parent, cst.Attribute) and parent.attr is name)


def _is_filled(facts: ModuleFacts, name: cst.Name) -> bool:
    """``all_reduce(x)`` or ``all_gather(parts, x)`` before: the collective writes into its first argument."""
    function, place = facts.function_of(name), facts.order[name]
    for call in facts.nodes(cst.Call):
        if tail(call.func) not in _GATHERS or facts.order[call] >= place:
            continue
        given = positional(call)
        if given and is_name(given[0], name.value) and facts.function_of(call) is function:
            return True
    return False
