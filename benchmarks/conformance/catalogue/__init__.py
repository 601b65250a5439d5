"""Every torchmetrics class that can be constructed without a download, with batches for it."""

from __future__ import annotations

import functools
import importlib

from benchmarks.conformance.case import Case

__all__ = ["MODULES", "cases", "find"]

_GROUPS = (
    "classification",
    "regression",
    "retrieval",
    "aggregation",
    "clustering",
    "spatial",
    "text",
    "image",
    "features",
    "detection",
    "audio",
    "multimodal",
    "wrappers",
)
MODULES = tuple(f"{__name__}.{group}" for group in _GROUPS)


@functools.cache
def cases() -> dict[str, Case]:
    """Return all cases by name."""
    found: dict[str, Case] = {}
    for module in MODULES:
        for case in importlib.import_module(module).cases():
            if case.name in found:
                raise ValueError(f"two cases are called {case.name!r}")
            found[case.name] = case
    return found


def find(name: str) -> Case:
    """Return the case of that name."""
    return cases()[name]
