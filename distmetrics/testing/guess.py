"""What a metric class can be made with and fed with, told from its names and signatures. Pure.

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
    "beta": 2.0,
    "min_precision": 0.5,
    "min_recall": 0.5,
    "min_sensitivity": 0.5,
    "min_specificity": 0.5,
    "threshold": 0.5,
    "k": 2,
    "p": 2.0,
    "data_range": 1.0,
    "n_gram": 2,
}
_TASKS = ("binary", "multiclass", "multilabel")
# The part of a module's name → inputs. Classes of other parts, like audio, take what has no ready
# strategy.
_PARTS: Mapping[str, str] = {
    "aggregation": "aggregation",
    "clustering": "clustering",
    "detection": "detection",
    "image": "image",
    "nominal": "clustering",
    "regression": "regression",
    "retrieval": "retrieval",
    "segmentation": "segmentation",
    "text": "text",
}
# Inputs → names of update's parameters, any of which stands for the same at that place.
_PREDICTED, _TRUE = (
    {"preds", "pred", "predictions", "input", "inputs", "y_pred", "data"},
    {"target", "targets", "y_true", "labels"},
)
_PAIR = (_PREDICTED, _TRUE)
_PARAMETERS: Mapping[str, tuple[set[str], ...]] = {
    **dict.fromkeys(
        (*_TASKS, "clustering", "detection", "image", "regression", "segmentation", "text"), _PAIR
    ),
    "retrieval": (*_PAIR, {"indexes"}),
    "aggregation": ({"value", "values", "input"},),
}
_BY_PARAMETERS = ("retrieval", "aggregation")  # update's parameters have names of their own
_SIZES: Mapping[str, str] = {
    "multiclass": "num_classes",
    "multilabel": "num_labels",
    "regression": "num_outputs",
    "segmentation": "num_classes",
}
_NESTED = re.compile(
    r"(Sequence|[lL]ist)\[[^\]]*(Sequence|[lL]ist)\["
)  # several references a candidate


@dataclass(frozen=True, slots=True)
class Guess:
    """How a metric can be made and fed, as far as its names tell.

    Attributes:
        arguments: of the constructor, those given among them.
        inputs: name of a ready strategy in :mod:`distmetrics.testing.inputs`; "" if none is known
            to suit.
        options: of that strategy.
        unknown: arguments that the constructor demands, and for which no value is known.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def guess(make: Callable[..., Any], given: Mapping[str, Any]) -> Guess:
    """Guess what to make a metric with, and what to update it with.

    Args:
        make: the class, or a function that makes the metric.
        given: arguments that are decided already.

    >>> class MulticlassHits:
    ...     def __init__(self, num_classes): ...
    ...     def update(self, preds, target): ...
    >>> guess(MulticlassHits, {"num_classes": 7})
    Guess(arguments={'num_classes': 7}, inputs='multiclass', options={'num_classes': 7}, unknown=())
    """
    known, demanded = _parameters(make)
    arguments = dict(given)
    for name in demanded:
        if name not in arguments and name in _ARGUMENTS:
            arguments[name] = _ARGUMENTS[name]
    if arguments.get("task") in _SIZES and (size := _SIZES[arguments["task"]]) in known:
        arguments.setdefault(size, _ARGUMENTS[size])  # has a default that the task does not allow
    inputs = next((name for name in _wanted(make, known, arguments) if _suits(make, name)), "")
    return Guess(
        arguments,
        inputs,
        _options(make, inputs, arguments),
        tuple(name for name in demanded if name not in arguments),
    )


def _options(make: Callable[..., Any], inputs: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the strategy must be told, so that its batches fit the metric."""
    size, updated = _SIZES.get(inputs, ""), _updated(make)
    options = {size: arguments[size]} if size in arguments else {}
    if inputs == "text" and not (updated and _NESTED.search(str(updated[1].annotation))):
        options["references"] = None  # one a candidate
    if inputs == "clustering" and updated and updated[0].name == "data":
        options["num_features"] = 2
    if inputs == "image":
        options["channels"] = 3
    return options


def fed_like(guessed: Guess, made: Any) -> Guess:
    """Return a guess with the inputs that suit a metric that was made: what makes it may have no
    telling name.

    >>> from torchmetrics.classification import MulticlassRecall
    >>> fed_like(Guess(), MulticlassRecall(num_classes=7)).options
    {'num_classes': 7}
    """
    sizes = {name: getattr(made, name, None) for name in _SIZES.values()}
    seen = guess(type(made), {name: size for name, size in sizes.items() if isinstance(size, int)})
    return replace(guessed, inputs=seen.inputs, options=seen.options)


def _parameters(make: Callable[..., Any]) -> tuple[set[str], list[str]]:
    """Return the names of all parameters, and those that must be given."""
    made_by_new = inspect.isclass(make) and "__new__" in vars(make)
    try:
        found = inspect.signature(
            vars(make)["__new__"] if made_by_new else make
        ).parameters.values()
    except (TypeError, ValueError):  # of C
        return set(), []
    named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)][made_by_new:]
    return {p.name for p in named}, [p.name for p in named if p.default is p.empty]


def _wanted(
    make: Callable[..., Any], known: set[str], arguments: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the inputs that the names speak of, the surest first."""
    if "task" in known:
        yield str(arguments.get("task", ""))
    classes = inspect.getmro(make) if inspect.isclass(make) else ()
    for cls in classes:
        yield from (task for task in _TASKS if task in cls.__name__.lower())
    for cls in classes:
        yield from (_PARTS[part] for part in cls.__module__.split(".")[1:] if part in _PARTS)
    yield from _kinds(make) & {"detection", "text"}
    yield from (task for task in ("multilabel", "multiclass") if _SIZES[task] in arguments)
    yield from _BY_PARAMETERS


def _suits(make: Callable[..., Any], inputs: str) -> bool:
    """Whether ``update`` takes as many arguments as the strategy gives, under names that fit."""
    wanted, found = _PARAMETERS.get(inputs, ()), _updated(make)
    if not wanted:
        return False
    if _kinds(make) not in (set(), {inputs if inputs in ("detection", "text") else "tensors"}):
        return False
    if not found:  # of a class that makes one of another: its own name must do
        return inputs not in _BY_PARAMETERS
    demanded = [p for p in found if p.default is p.empty]
    return len(demanded) <= len(wanted) <= len(found) and all(
        p.name in names for p, names in zip(found, wanted, strict=False)
    )


def _kinds(make: Callable[..., Any]) -> set[str]:
    """Return what update's annotations speak of; nothing where there are none, or where they allow
    anything.
    """
    found = set()
    for text in (str(p.annotation) for p in _updated(make) if p.annotation not in (p.empty, Any)):
        boxes = "list[dict[str" in text.lower() and "Tensor" in text
        found.add(
            "detection"
            if boxes
            else "others"
            if "dict" in text
            else "text"
            if "str" in text
            else "tensors"
        )
    return found


def _updated(make: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of ``update`` that can be positional, without self."""
    update = getattr(make, "update", None)
    if update is None:
        return []
    try:
        found = list(inspect.signature(update).parameters.values())[1:]
    except (TypeError, ValueError):
        return []
    return [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
