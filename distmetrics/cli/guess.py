"""What a metric can be made and fed with, as far as names of classes, modules and parameters tell.

torchmetrics and torcheval name their classes after the task, and others follow: ``Binary…``,
``num_classes``, ``update(preds, target, indexes)``. Where the names say nothing, neither does this.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# What a constructor may demand, and a value that suits small inputs.
_ARGUMENTS: Mapping[str, Any] = {
    "task": "multiclass",
    "num_classes": 4,
    "num_labels": 3,
    "num_outputs": 1,
    "num_tasks": 1,
    "num_groups": 2,
    "beta": 2,
    "p": 2,
    "k": 2,
    "n_gram": 2,
    "threshold": 0.5,
    "min_precision": 0.5,
    "min_recall": 0.5,
    "min_sensitivity": 0.5,
    "min_specificity": 0.5,
    "data_range": 1.0,
}
# Names of inputs, which are words in names of classes, or parts of names of modules; with the
# argument of the constructor that the inputs must be told.
_SIZES = {
    "multilabel": "num_labels",
    "multiclass": "num_classes",
    "binary": "",
    "segmentation": "num_classes",
    "aggregation": "",
    "clustering": "",
    "detection": "",
    "image": "",
    "regression": "",
    "retrieval": "",
    "text": "",
}
_TASKS = ("multilabel", "multiclass", "binary")


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
    updated = _parameters(getattr(make, "update", None))
    demanded = _demanded(parameters)
    arguments = {name: _ARGUMENTS[name] for name in demanded if name in _ARGUMENTS}
    arguments |= given
    inputs = _inputs_of(make, arguments, updated)
    size = _SIZES.get(inputs, "")
    if size in parameters:
        arguments.setdefault(size, _ARGUMENTS[size])
    options = {size: arguments[size]} if size in arguments else {}
    if inputs == "image":
        options = {"channels": 3}
    if inputs == "clustering" and "data" in updated:
        options = {"num_features": 2}
    if inputs == "text":
        annotation = str([*updated.values()][-1]).lower()
        if annotation.count("sequence[") + annotation.count("list[") < 2:
            options = {"references": None}
    unknown = tuple(name for name in demanded if name not in arguments)
    return Guess(arguments, inputs, options, unknown)


def fed_like(guessed: Guess, metric: Any) -> Guess:
    """Return a guess with inputs for a metric whose maker has no telling name.

    >>> from torchmetrics.classification import MulticlassRecall
    >>> fed_like(Guess(), MulticlassRecall(num_classes=7)).options
    {'num_classes': 7}
    """
    sizes = {name: getattr(metric, name, None) for name in ("num_classes", "num_labels")}
    given = {name: size for name, size in sizes.items() if size}
    like = guess(type(metric), given)
    return replace(guessed, inputs=like.inputs, options=like.options)


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a function or class, without self."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # nothing that is called, or a function of C
        return {}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p for p in parameters if p.kind in kinds and p.name != "self"}


def _demanded(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name, p in parameters.items() if p.default is p.empty]


def _inputs_of(
    make: Any,
    arguments: Mapping[str, Any],
    updated: Mapping[str, inspect.Parameter],
) -> str:
    """Return the inputs that the names speak of, the surest first, or ""."""
    if "task" in arguments:
        return str(arguments["task"])
    classes = inspect.getmro(make) if inspect.isclass(make) else ()
    for cls in classes:
        for task in _TASKS:
            if task in cls.__name__.lower():
                return task
    for cls in classes:
        for part in cls.__module__.replace("nominal", "clustering").split("."):
            if part in _SIZES:
                return part
    for task in _TASKS:
        if _SIZES[task] in arguments:
            return task
    if "indexes" in updated:
        return "retrieval"
    return "aggregation" if len(_demanded(updated)) == 1 else ""
