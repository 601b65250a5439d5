"""The testing kit: worlds of threads and of processes, and the laws of distributed metrics."""

import importlib
from typing import TYPE_CHECKING, Any

from distmetrics.comm.verdict import Outcome
from distmetrics.testing.worlds import outcomes, run

if TYPE_CHECKING:
    from distmetrics.testing import faults, laws
    from distmetrics.testing.check import Report, Violation, assert_distributed, check_metric
    from distmetrics.testing.equality import BITWISE, EXACT, Equality, relative
    from distmetrics.testing.equivalence import assert_same_as_single
    from distmetrics.testing.shards import sharded
    from distmetrics.testing.subject import function

__all__ = [
    "BITWISE",
    "EXACT",
    "Equality",
    "Outcome",
    "Report",
    "Violation",
    "assert_distributed",
    "assert_same_as_single",
    "check_metric",
    "faults",
    "function",
    "laws",
    "outcomes",
    "relative",
    "run",
    "sharded",
]

# Loaded when they are asked for: they bring the trainer along, or the laws, which few tests need.
_LATER = {
    "BITWISE": "equality",
    "EXACT": "equality",
    "Equality": "equality",
    "Report": "check",
    "Violation": "check",
    "assert_distributed": "check",
    "assert_same_as_single": "equivalence",
    "check_metric": "check",
    "function": "subject",
    "relative": "equality",
    "sharded": "shards",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"distmetrics.testing.{_LATER[name]}"), name)
    if name in ("faults", "inputs", "laws", "shards"):
        return importlib.import_module(f"distmetrics.testing.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
