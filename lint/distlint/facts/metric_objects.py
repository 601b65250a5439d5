"""Metric objects kept on ``self``: how they were made, and values that come from calling them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.tree import tail, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

# Calls and methods that hand one value on.
_HANDS_ON = frozenset({"item", "detach", "cpu", "float", "clone", "items", "mean", "to", "double"})

METRICS = ("torchmetrics.", "pytorch_lightning.metrics.")  # the second until Lightning 1.5


def metric_object(facts: ModuleFacts, node: cst.BaseExpression | None) -> cst.Call | None:
    """How the metric object that an expression stands for was made; None when it is no such object."""
    attribute, owner = facts.self_attribute(node), None if node is None else facts.owner(node)
    if isinstance(node, cst.Subscript):
        return _container_metric(facts, node)
    values = owner.values(attribute) if attribute is not None and owner is not None else []
    calls = [value for value in values if isinstance(value, cst.Call)]
    if not calls or len(calls) != len(values):
        return None
    return calls[0] if all(is_metric_class(facts, call) for call in calls) else None


def _container_metric(facts: ModuleFacts, node: cst.Subscript) -> cst.Call | None:
    """``self.metrics[key]`` of a ``ModuleDict`` or ``ModuleList`` of metrics."""
    attribute, owner = facts.self_attribute(node.value), facts.owner(node)
    values = owner.values(attribute) if attribute is not None and owner is not None else []
    for value in values:
        for part in walk(value):
            if isinstance(part, cst.Call) and is_metric_class(facts, part):
                return part
    return None


def is_metric_class(facts: ModuleFacts, call: cst.Call) -> bool:
    """Whether a call makes a metric object, or a copy of one that is made in the same place."""
    if tail(call.func) == "clone":
        made = receiver(call)
        first = origin(facts, made) or (metric_object(facts, made) if isinstance(made, cst.Attribute) else None)
        return first is not None and tail(first.func) != "clone" and is_metric_class(facts, first)
    full = facts.resolve(call.func) or ""
    if full.startswith(METRICS):
        return full.rpartition(".")[2][:1].isupper()
    for binding in facts.scope(call).lookup(call.func.value) if isinstance(call.func, cst.Name) else ():
        if isinstance(binding.node, cst.ClassDef):
            return "metric" in facts.classes[binding.node].kinds
    return False


def forwarded(facts: ModuleFacts, value: cst.BaseExpression, depth: int = 0) -> cst.Call | None:
    """``self.metric(x, y)`` that a value is, directly or by way of a variable."""
    if depth > 4:
        return None
    if isinstance(value, cst.Name):
        found = [forwarded(facts, each.value, depth + 1) for each in reaching(facts, value) if each.value is not None]
        return found[0] if found and all(each is not None for each in found) else None
    if isinstance(value, cst.Subscript):
        return forwarded(facts, value.value, depth + 1)
    if not isinstance(value, cst.Call):
        return None
    if metric_object(facts, value.func) is not None:
        return value if value.args else None
    below = receiver(value)
    return forwarded(facts, below, depth + 1) if below is not None and tail(value.func) in _HANDS_ON else None


def origin(facts: ModuleFacts, node: cst.BaseExpression | None) -> cst.Call | None:
    """The one call that a name's value comes from."""
    found = [each.value for each in reaching(facts, node)] if isinstance(node, cst.Name) else []
    return found[0] if len(found) == 1 and isinstance(found[0], cst.Call) else None


def receiver(node: cst.Call) -> cst.BaseExpression | None:
    """What a method is called on."""
    return node.func.value if isinstance(node.func, cst.Attribute) else None
