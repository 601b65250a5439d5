"""Every torchmetrics class that can be constructed without a download, with batches for it."""

from __future__ import annotations

import functools
import importlib

from benchmarks.conformance.case import Case

__all__ = ["cases", "find"]

_GROUPS = ("classification", "regression", "retrieval", "aggregation")


@functools.cache
def cases() -> dict[str, Case]:
    """Return all cases by name."""
    found: dict[str, Case] = {}
    for group in _GROUPS:
        for case in importlib.import_module(f"{__name__}.{group}").cases():
            if case.name in found:
                raise ValueError(f"two cases are called {case.name!r}")
            found[case.name] = case
    return found


def find(name: str) -> Case:
    """Return the case of that name."""
    return cases()[name]
