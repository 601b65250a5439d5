"""The testing kit: worlds of threads and of processes, and the laws of distributed metrics."""

import importlib
from typing import TYPE_CHECKING, Any

from distmetrics.comm.verdict import Outcome
from distmetrics.testing import faults, laws
from distmetrics.testing.check import Report, Violation, assert_distributed, check_metric
from distmetrics.testing.equality import BITWISE, EXACT, Equality, relative
from distmetrics.testing.shards import sharded
from distmetrics.testing.subject import function
from distmetrics.testing.worlds import outcomes, run

if TYPE_CHECKING:
    from distmetrics.testing.equivalence import assert_same_as_single

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


def __getattr__(name: str) -> Any:
    # Loaded when they are asked for: they bring hypothesis and the trainer along.
    if name == "inputs":
        return importlib.import_module("distmetrics.testing.inputs")
    if name == "assert_same_as_single":
        return importlib.import_module("distmetrics.testing.equivalence").assert_same_as_single
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
