"""Where the lists of a module grow while a trainer runs its steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.classes import ClassFacts, reached
from distlint.facts.tree import container, is_name, positional, tail, walk_scope

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

# Those that run epoch after epoch, or (a test) add to the next run's numbers; predictions are made once.
_STAGES = ("training", "validation", "test")
_BATCH_HOOKS = {
    f"on_{stage}_batch_{when}": name
    for stage, name in zip(("train", "validation", "test"), _STAGES, strict=True)
    for when in ("start", "end")
}
_STEPS = {f"{stage}_step{end}": stage for stage in _STAGES for end in ("", "_end")} | _BATCH_HOOKS
_GROWS = frozenset({"append", "extend", "insert"})


def grown(facts: ModuleFacts, owner: ClassFacts) -> Iterator[tuple[cst.CSTNode, str, str]]:
    """Places where a list of ``self`` gets longer in a step, or in a method that a step calls."""
    steps = [method for name, method in owner.methods.items() if name in _STEPS]
    for method, step in reached(facts, owner, steps):
        for node in walk_scope(method):
            attribute = _growth(facts, node)
            if attribute is not None and _is_list(facts, owner, attribute):
                yield node, attribute, _STEPS[step.name.value]


def _growth(facts: ModuleFacts, node: cst.CSTNode) -> str | None:
    """``x`` of ``self.x.append(…)``, ``self.x["key"].append(…)`` and ``self.x += [...]``."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _GROWS:
        given = positional(node)
        return None if not given or _is_small(given[-1]) else facts.self_attribute(container(node.func.value))
    if isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.AddAssign):
        is_list = isinstance(node.value, cst.List | cst.ListComp)
        return facts.self_attribute(container(node.target)) if is_list else None
    return None


def _is_small(value: cst.BaseExpression) -> bool:
    """A number or text, or a list of Python's numbers (``losses.tolist()``): small enough to be kept as a history."""
    is_list = isinstance(value, cst.Call) and tail(value.func) in ("tolist", "range")
    return is_list or _is_number(value)


def _is_number(value: cst.BaseExpression) -> bool:
    """A number or text."""
    if isinstance(value, cst.Call):
        return tail(value.func) in ("item", "float", "int", "str", "len", "round", "time", "perf_counter")
    if isinstance(value, cst.BinaryOperation):
        return _is_number(value.left) or _is_number(value.right)
    if isinstance(value, cst.Attribute):
        return value.attr.value in ("global_step", "current_epoch")
    return isinstance(value, cst.BaseNumber | cst.BaseString) or is_name(value, "batch_idx")


def _is_list(facts: ModuleFacts, owner: ClassFacts, attribute: str) -> bool:
    """Whether the class makes the attribute as a list, or as a dict of lists."""
    values = owner.values(attribute)
    return bool(values) and all(_makes_list(facts, value) for value in values)


def _makes_list(facts: ModuleFacts, value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.List | cst.ListComp):
        return True
    if isinstance(value, cst.Dict):
        inner = [element.value for element in value.elements]
        return bool(inner) and all(isinstance(each, cst.List) for each in inner)
    if isinstance(value, cst.DictComp):
        return isinstance(value.value, cst.List)
    if not isinstance(value, cst.Call):
        return False
    full = facts.resolve(value.func)
    given = positional(value)
    return full == "builtins.list" or (full == "collections.defaultdict" and bool(given) and is_name(given[0], "list"))
