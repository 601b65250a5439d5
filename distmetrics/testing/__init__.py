"""The testing kit: worlds of threads and of processes, and the laws of distributed metrics."""

import importlib
from typing import TYPE_CHECKING, Any

from distmetrics.comm.verdict import Outcome
from distmetrics.testing.world import outcomes, run

if TYPE_CHECKING:
    from distmetrics.testing import faults, laws
    from distmetrics.testing.batches import Batch
    from distmetrics.testing.check import assert_distributed, check_metric, replay
    from distmetrics.testing.equality import BITWISE, EXACT, Equality, relative
    from distmetrics.testing.equivalence import assert_same_as_single
    from distmetrics.testing.report import Report, Violation
    from distmetrics.testing.stall_counter import Stall, stalls
    from distmetrics.testing.subject import function

__all__ = [
    "BITWISE",
    "EXACT",
    "Batch",
    "Equality",
    "Outcome",
    "Report",
    "Stall",
    "Violation",
    "assert_distributed",
    "assert_same_as_single",
    "check_metric",
    "faults",
    "function",
    "laws",
    "outcomes",
    "relative",
    "replay",
    "run",
    "stalls",
]

# Loaded when they are asked for: they bring the trainer along, or the laws, which few tests need.
_LATER = {
    "BITWISE": "equality",
    "EXACT": "equality",
    "Batch": "batches",
    "Equality": "equality",
    "Report": "report",
    "Stall": "stall_counter",
    "Violation": "report",
    "assert_distributed": "check",
    "assert_same_as_single": "equivalence",
    "check_metric": "check",
    "function": "subject",
    "relative": "equality",
    "replay": "check",
    "stalls": "stall_counter",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"distmetrics.testing.{_LATER[name]}"), name)
    if name in ("faults", "inputs", "laws", "shards"):
        return importlib.import_module(f"distmetrics.testing.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
