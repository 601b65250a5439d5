"""What a metric can be made and fed with, as far as names of classes, modules and parameters tell.

torchmetrics and torcheval name their classes after the task, and others follow: ``Binary…``,
``num_classes``, ``update(preds, target, indexes)``. Where the names say nothing, neither does this.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# What a constructor may demand, and a value that suits small inputs.
_ARGUMENTS: Mapping[str, Any] = {
    "num_classes": 4,
    "num_labels": 3,
    "num_outputs": 1,
    "num_groups": 2,
    "num_tasks": 1,
    "task": "multiclass",
    **dict.fromkeys(("beta", "p", "k", "n_gram"), 2),
    **dict.fromkeys(("min_precision", "min_recall", "min_sensitivity", "min_specificity"), 0.5),
    "threshold": 0.5,
    "data_range": 1.0,
}
_TASKS = ("binary", "multiclass", "multilabel")
_SIZES = {
    "multiclass": "num_classes",
    "multilabel": "num_labels",
    "segmentation": "num_classes",
}
# Part of a module's name → inputs.
_PARTS = {"nominal": "clustering"} | {
    name: name
    for name in ("aggregation", "clustering", "detection", "image")
    + ("regression", "retrieval", "segmentation", "text")
}


@dataclass(frozen=True, slots=True)
class Guess:
    """How a metric can be made and fed, as far as its names tell.

    Attributes:
        arguments: of the constructor, those given among them.
        inputs: name of a ready strategy in :mod:`distmetrics.testing.inputs`; "" if none is known.
        options: of that strategy.
        unknown: arguments that the constructor demands, and for which no value is known.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def guess(make: Callable[..., Any], given: Mapping[str, Any]) -> Guess:
    """Return what to make a metric with, and what to update it with.

    Args:
        make: the class, or a function that makes the metric.
        given: arguments that are decided already.

    >>> class MulticlassHits:
    ...     def __init__(self, num_classes): ...
    ...     def update(self, preds, target): ...
    >>> guess(MulticlassHits, {"num_classes": 7})
    Guess(arguments={'num_classes': 7}, inputs='multiclass', options={'num_classes': 7}, unknown=())
    """
    parameters = _parameters(make)
    demanded = _demanded(parameters)
    arguments = {name: _ARGUMENTS[name] for name in demanded if name in _ARGUMENTS} | dict(given)
    updated = _parameters(getattr(make, "update", None))
    inputs = next(filter(None, _wanted(make, arguments, _demanded(updated))), "")
    size = _SIZES.get(inputs, "")
    if size in parameters:
        arguments.setdefault(size, _ARGUMENTS[size])
    options = {size: arguments[size]} if size in arguments else _options(inputs, updated)
    unknown = tuple(name for name in demanded if name not in arguments)
    return Guess(arguments, inputs, options, unknown)


def fed_like(guessed: Guess, metric: Any) -> Guess:
    """Return a guess with inputs for a metric whose maker has no telling name.

    >>> from torchmetrics.classification import MulticlassRecall
    >>> fed_like(Guess(), MulticlassRecall(num_classes=7)).options
    {'num_classes': 7}
    """
    sizes = {name: getattr(metric, name, None) for name in _SIZES.values()}
    seen = guess(type(metric), {name: size for name, size in sizes.items() if size})
    return replace(guessed, inputs=seen.inputs, options=seen.options)


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or class by name, without self and those like ``*args``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # nothing that is called, or a function of C
        return {}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name: p for p in parameters if p.kind not in variable and p.name != "self"}


def _demanded(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name, p in parameters.items() if p.default is p.empty]


def _wanted(make: Any, arguments: Mapping[str, Any], updated: list[str]) -> Iterator[str]:
    """Yield the inputs that the names speak of, the surest first."""
    yield arguments.get("task", "")
    classes = inspect.getmro(make) if inspect.isclass(make) else ()
    for cls in classes:
        yield from (task for task in _TASKS if task in cls.__name__.lower())
    for cls in classes:
        yield from (_PARTS.get(part, "") for part in cls.__module__.split("."))
    yield from (task for task in ("multilabel", "multiclass") if _SIZES[task] in arguments)
    if "indexes" in updated:
        yield "retrieval"
    if len(updated) == 1:
        yield "aggregation"


def _options(inputs: str, updated: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Return what a strategy must be told, so that its batches fit the metric."""
    if inputs == "image":
        return {"channels": 3}
    if inputs == "clustering" and "data" in updated:
        return {"num_features": 2}
    lists = re.findall(r"(?:sequence|list)\[", str([*updated.values()][-1:]).lower())
    return {"references": None} if inputs == "text" and len(lists) < 2 else {}
