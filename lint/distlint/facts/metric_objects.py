"""Metric objects kept on ``self``: how they were made, and values that come from calling them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.tensor_names import SAME, TO_FLOAT
from distlint.facts.tree import tail, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

# Methods that hand on what a metric has returned, a number or a dict of numbers.
_HANDS_ON = SAME | TO_FLOAT | {"item", "items", "mean"}

_DEEPEST = 3
METRICS = ("torchmetrics.", "pytorch_lightning.metrics.")  # the second until Lightning 1.5


def metric_object(facts: ModuleFacts, node: cst.BaseExpression | None, depth: int = 0) -> cst.Call | None:
    """How the metric object that an expression stands for was made; None when it is no such object."""
    if node is None or depth > _DEEPEST:
        return None
    if isinstance(node, cst.Subscript):
        return _kept_in(facts, node.value)
    if isinstance(node, cst.Name):
        return _named(facts, node, depth)
    attribute, owner = facts.self_attribute(node), facts.owner(node)
    values = owner.values(attribute) if attribute is not None and owner is not None else []
    calls = [value for value in values if isinstance(value, cst.Call)]
    if not calls or len(calls) != len(values):
        return None
    return calls[0] if all(is_metric_class(facts, call) for call in calls) else None


def _named(facts: ModuleFacts, name: cst.Name, depth: int) -> cst.Call | None:
    """``metric = self.metrics[key]`` and ``for name, metric in self.metrics.items()``."""
    definitions = reaching(facts, name)
    if len(definitions) != 1 or definitions[0].value is None:
        return None
    value, steps = definitions[0].value, definitions[0].steps
    if not steps:
        return metric_object(facts, value, depth + 1) if isinstance(value, cst.Attribute | cst.Subscript) else None
    if isinstance(value, cst.Call) and (tail(value.func), steps) in (("items", ("iter", 1)), ("values", ("iter",))):
        return _kept_in(facts, receiver(value))
    return _kept_in(facts, value) if steps == ("iter",) else None


def _kept_in(facts: ModuleFacts, node: cst.BaseExpression | None) -> cst.Call | None:
    """A metric in ``self.metrics``, a ``ModuleDict``, ``ModuleList`` or plain container of metrics."""
    attribute, owner = facts.self_attribute(node), None if node is None else facts.owner(node)
    values = owner.values(attribute) if attribute is not None and owner is not None else []
    parts = (part for value in values for part in walk(value))
    return next((part for part in parts if isinstance(part, cst.Call) and is_metric_class(facts, part)), None)


def is_metric_class(facts: ModuleFacts, call: cst.Call, depth: int = 0) -> bool:
    """Whether a call makes a metric object, a copy of one, or calls a function of this file that does."""
    if tail(call.func) == "clone":
        made = receiver(call)
        first = origin(facts, made) or (metric_object(facts, made) if isinstance(made, cst.Attribute) else None)
        return first is not None and tail(first.func) != "clone" and is_metric_class(facts, first)
    full = facts.resolve(call.func) or ""
    if full.startswith(METRICS):
        return full.rpartition(".")[2][:1].isupper()
    if any(each.family == "metric" for each in facts.project.ancestors(full)):
        return True
    for binding in facts.scope(call).lookup(call.func.value) if isinstance(call.func, cst.Name) else ():
        if isinstance(binding.node, cst.ClassDef):
            return "metric" in facts.classes[binding.node].kinds
    function = facts.local_function(call) if depth < _DEEPEST else None
    made_there = facts.returns(function) if function is not None else []
    calls = [value for value in made_there if isinstance(value, cst.Call)]
    return (
        bool(calls) and len(calls) == len(made_there) and all(is_metric_class(facts, each, depth + 1) for each in calls)
    )


def is_of_library(facts: ModuleFacts, call: cst.Call, depth: int = 0) -> bool:
    """Whether a call makes one of torchmetrics' own metrics, itself, as a copy, or by a function of this file."""
    if tail(call.func) == "clone":
        made = receiver(call)
        first = origin(facts, made) or metric_object(facts, made)
        return first is not None and depth < _DEEPEST and is_of_library(facts, first, depth + 1)
    if (facts.resolve(call.func) or "").startswith(METRICS):
        return True
    function = facts.local_function(call) if depth < _DEEPEST else None
    made_there = facts.returns(function) if function is not None else []
    return any(isinstance(value, cst.Call) and is_of_library(facts, value, depth + 1) for value in made_there)


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
