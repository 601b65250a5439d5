"""Which values are already those of all ranks, so that averaging them changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.tree import container, is_name, keyword, number, positional, tail, text_of, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_TELLING = ("gather", "all_reduce", "allreduce", "mesh_reduce", "sync_and_compute")
_BEGINNINGS = ("reduce_", "sync_", "synchronize", "broadcast", "average_across", "mean_across", "avg_across")
_LOGGED = frozenset({"callback_metrics", "logged_metrics"})  # of a trainer, which has reduced them
_NAMESAKES = ("torch.gather", "torch.scatter", "einops.", "functools.", "numpy.")
_DEEPEST = 5


def is_gathered(facts: ModuleFacts, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether a value is made from what a collective brought together."""
    if depth > _DEEPEST:
        return False
    for part in walk(node):
        if isinstance(part, cst.Call) and (is_gathering(facts, part) or _is_computed(part)):
            return True
        if isinstance(part, cst.Attribute) and part.attr.value in _LOGGED:
            return True
        if isinstance(part, cst.Name) and _is_read(facts, part):
            if is_filled(facts, part):
                return True
            for definition in reaching(facts, part):
                if definition.value is not None and is_gathered(facts, definition.value, depth + 1):
                    return True
    return False


def _is_computed(call: cst.Call) -> bool:
    """``metric.compute()``: a metric object brings its counts together itself."""
    return tail(call.func) == "compute" and isinstance(call.func, cst.Attribute) and not call.args


def is_gathering(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether a call brings the ranks' values together, told by its name; ``x.gather(1, index)`` does not."""
    name = tail(call.func) or ""
    lower = name.lower().lstrip("_")
    if lower in ("gather", "reduce"):
        return _is_distributed(facts, call, lower)
    return any(word in lower for word in _TELLING) or lower.startswith(_BEGINNINGS)


def _is_distributed(facts: ModuleFacts, call: cst.Call, name: str) -> bool:
    full, given = facts.resolve(call.func) or "", positional(call)
    if full.startswith("torch.distributed."):
        return True
    if full.startswith(_NAMESAKES):
        return False
    if name == "reduce":  # einops.reduce(x, "b c -> b", "mean"), functools.reduce(lambda …)
        return not any(isinstance(value, cst.Lambda) or "->" in (text_of(value) or "") for value in given)
    is_index = len(given) > 1 and (number(given[0]) is not None or number(given[1]) is not None)
    return not is_index and not any(keyword(call, word) is not None for word in ("dim", "index"))


def _is_read(facts: ModuleFacts, name: cst.Name) -> bool:
    parent = facts.parents.get(name)
    is_label = isinstance(parent, cst.Arg) and parent.keyword is name
    return not is_label and not (isinstance(parent, cst.Attribute) and parent.attr is name)


def is_filled(facts: ModuleFacts, name: cst.Name) -> bool:
    """``all_reduce(x)`` or ``all_gather(parts, x)`` before: the collective writes into its first argument."""
    calls = facts.gathering
    if not calls:
        return False
    function, place = facts.function_of(name), facts.order[name]
    return any(
        facts.order[call] < place and facts.function_of(call) is function and _fills(facts, call, name.value)
        for call in calls
    )


def _fills(facts: ModuleFacts, call: cst.Call, name: str) -> bool:
    """Whether a collective writes into a name, one of its items, or all of them in a loop."""
    given = positional(call)
    target = container(given[0]) if given else None
    if not isinstance(target, cst.Name):
        return False
    if target.value == name:
        return True
    loops = (above for above in facts.ancestors(call) if isinstance(above, cst.For))
    return any(_mentions(loop.target, target.value) and _mentions(loop.iter, name) for loop in loops)


def _mentions(node: cst.CSTNode, name: str) -> bool:
    return any(is_name(part, name) for part in walk(node))
