"""Classification: every task-specific class, curves exact and binned, and task wrappers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator
from torchmetrics import classification

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import Source, integers, of, uniform

__all__ = ["cases"]

_CLASSES = 4
_LABELS = 3
# What a class cannot be constructed without, beside the number of classes or labels.
_REQUIRED = {
    "min_recall": 0.5,
    "min_precision": 0.5,
    "min_specificity": 0.5,
    "min_sensitivity": 0.5,
    "beta": 2.0,
    "num_groups": 2,
    "num_classes": _CLASSES,
    "num_labels": _LABELS,
}
_CHOOSERS = "min_recall", "min_precision", "min_specificity", "min_sensitivity", "beta"


def _binary(generator: Generator, n: int) -> Batch:
    return Batch((uniform(generator, n), integers(generator, 2, n)))


def _grouped(generator: Generator, n: int) -> Batch:
    return Batch((*_binary(generator, n).args, integers(generator, 2, n)))


def _multiclass(generator: Generator, n: int) -> Batch:
    return Batch(
        (torch.randn(n, _CLASSES, generator=generator).softmax(1), integers(generator, _CLASSES, n))
    )


def _multilabel(generator: Generator, n: int) -> Batch:
    return Batch((uniform(generator, n, _LABELS), integers(generator, 2, n, _LABELS)))


def _positions(source: Callable[[Generator, int], Batch]) -> Source:
    """Give every sample five positions, so that a sample has a value of its own."""

    def several(generator: Generator, n: int) -> Batch:
        each = [source(generator, n).args for _ in range(5)]
        return Batch(tuple(torch.stack(parts, -1) for parts in zip(*each, strict=True)))

    return several


_SOURCES: dict[str, Callable[[Generator, int], Batch]] = {
    "Binary": _binary,
    "Multiclass": _multiclass,
    "Multilabel": _multilabel,
}


def cases() -> Iterator[Case]:
    """Yield the cases of this group."""
    for name in sorted(classification.__all__):
        cls = getattr(classification, name)
        prefix = next((prefix for prefix in _SOURCES if name.startswith(prefix)), None)
        if prefix is None:
            yield _chooser(cls)
        else:
            yield from _tasks(cls, prefix)


def _options(cls: Any, names: Any) -> dict[str, Any]:
    known = inspect.signature(cls.__new__ if "__new__" in vars(cls) else cls.__init__).parameters
    return {name: _REQUIRED[name] for name in names if name in known}


def _tasks(cls: Any, prefix: str) -> Iterator[Case]:
    """Yield the cases of a class that is made for one task."""
    known = inspect.signature(cls.__init__).parameters
    required = _options(cls, _REQUIRED)
    source: Source = _SOURCES[prefix]
    if "num_groups" in known:
        source = _grouped
    if cls.__name__ == "MulticlassExactMatch":
        source = _positions(_multiclass)
    yield of(cls, source, "classification", **required)
    if "thresholds" in known:
        yield of(cls, source, "classification", "thresholds=8", thresholds=8, **required)
    if "average" in known:
        yield of(cls, source, "classification", "average=None", average=None, **required)
    if "multidim_average" in known:
        more = required | {"multidim_average": "samplewise"}
        yield of(cls, _positions(_SOURCES[prefix]), "classification", "samplewise", **more)


def _chooser(cls: Any) -> Case:
    """Return the case of a class that constructs the one for a given task."""
    known = inspect.signature(cls.__new__).parameters
    options = {"task": "multiclass", "num_classes": _CLASSES, **_options(cls, _CHOOSERS)}
    if "average" in known:
        options["average"] = "weighted" if "multidim_average" in known else "macro"
    source = _positions(_multiclass) if cls.__name__ == "ExactMatch" else _multiclass
    return of(cls, source, "classification", **options)
