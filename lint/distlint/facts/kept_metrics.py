"""What a module does by hand with the metrics that it keeps in a plain list or dict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.classes import ClassFacts
from distlint.facts.flow import reaching
from distlint.facts.tree import container, tail, text_of, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_DEEPEST, _DEEPEST_WAY = 6, 4
_HANDS_OUT = frozenset({"get", "items", "pop", "values"})
_RUNS_OVER = frozenset({"enumerate", "iter", "list", "reversed", "sorted", "tqdm", "tuple", "zip"})
_MOVES = frozenset({"cuda", "to"})
_REGISTERS = frozenset({"MetricCollection", "ModuleDict", "ModuleList"})
_FEEDS = frozenset({"forward", "update"})
_GROWS = frozenset({"append", "extend"})
_TO_CPU = frozenset({"cpu", "numpy", "tolist"})


@dataclass(frozen=True)
class Handling:
    """What is done with the metrics of one container.

    Attributes:
        is_reset: whether the class resets them.
        is_moved: whether the class brings them to a device.
        is_fed_from_cpu: whether something that they are updated with was brought to the CPU.
    """

    is_reset: bool = False
    is_moved: bool = False
    is_fed_from_cpu: bool = False


def handling(facts: ModuleFacts, owner: ClassFacts, name: str) -> Handling:
    """How a class, with its bases in the module, drives the metrics in ``self.<name>``."""
    done: set[str] = set()
    for info in owner.lineage():
        for node in info.body():
            if not isinstance(node, cst.Call):
                continue
            if tail(node.func) in _REGISTERS and any(facts.self_attribute(arg.value) == name for arg in node.args):
                return Handling(is_reset=True, is_moved=True)  # a template: what it is made into is a submodule
            if name in members(facts, node.func):  # self.metrics["f1"](x, y)
                done.update(_fed(facts, node))
            elif isinstance(node.func, cst.Attribute) and name in members(facts, node.func.value):
                done.add(node.func.attr.value)
                done.update(_fed(facts, node) if node.func.attr.value in _FEEDS else ())
    return Handling("reset" in done, not _MOVES.isdisjoint(done), not _TO_CPU.isdisjoint(done))


def members(facts: ModuleFacts, node: cst.BaseExpression, depth: int = 0) -> set[str]:
    """The containers on ``self`` of which an expression may be an element: ``{"x"}`` for ``self.x[key]``."""
    if depth > _DEEPEST:
        return set()
    if isinstance(node, cst.Subscript):
        return _containers(facts, node.value, depth + 1)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _HANDS_OUT:
        return _containers(facts, node.func.value, depth + 1)
    found: set[str] = set()
    for definition in reaching(facts, node) if isinstance(node, cst.Name) else ():
        if definition.value is not None:
            follow = _containers if "iter" in definition.steps else members
            found |= follow(facts, definition.value, depth + 1)
    return found


def _containers(facts: ModuleFacts, node: cst.BaseExpression, depth: int) -> set[str]:
    """The attributes of ``self`` that an expression is, holds parts of, or runs over."""
    own = facts.self_attribute(node)
    if own is not None:
        return {own}
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in _RUNS_OVER:
        return {name for arg in node.args for name in _containers(facts, arg.value, depth + 1)}
    found = members(facts, node, depth)
    for definition in reaching(facts, node) if isinstance(node, cst.Name) and depth <= _DEEPEST else ():
        if definition.value is not None and not definition.steps:
            found |= _containers(facts, definition.value, depth + 1)
    return found


def _fed(facts: ModuleFacts, call: cst.Call) -> Iterator[str]:
    """The methods by which what a metric is given was brought to the CPU."""
    for arg in call.args:
        yield from _ways_to_cpu(facts, arg.value)


def _ways_to_cpu(facts: ModuleFacts, value: cst.BaseExpression, depth: int = 0) -> Iterator[str]:
    for node in walk(value) if depth < _DEEPEST_WAY else ():
        sources: Iterator[cst.BaseExpression | None] = iter(())
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            name = node.func.attr.value
            is_told = name == "to" and any(text_of(arg.value) == "cpu" for arg in node.args)
            yield from ("cpu",) if is_told else _TO_CPU & {name}
        elif isinstance(node, cst.Name):
            sources = (definition.value for definition in reaching(facts, node))
        elif isinstance(node, cst.Attribute):
            sources = _collected(facts, node)
        for source in sources:
            if source is not None:
                yield from _ways_to_cpu(facts, source, depth + 1)


def _collected(facts: ModuleFacts, node: cst.Attribute) -> Iterator[cst.BaseExpression]:
    """What the class assigns to ``self.x``, and what it appends to that."""
    name, owner = facts.self_attribute(node), facts.owner(node)
    if name is None or owner is None:
        return
    yield from owner.values(name)
    for each in owner.body():
        grown = each.func if isinstance(each, cst.Call) and isinstance(each.func, cst.Attribute) else None
        if isinstance(each, cst.Call) and grown is not None and grown.attr.value in _GROWS:
            is_this = facts.self_attribute(container(grown.value)) == name
            yield from (arg.value for arg in each.args if is_this)
