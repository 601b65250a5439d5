"""The testing kit: worlds of threads and of processes, and a trained module against the single process's."""

from typing import TYPE_CHECKING, Any

from distmetrics.testing.world import Outcome, outcomes, run

if TYPE_CHECKING:
    from distmetrics.testing.same import assert_same_as_single

__all__ = ["Outcome", "assert_same_as_single", "outcomes", "run"]


def __getattr__(name: str) -> Any:
    if name != "assert_same_as_single":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from distmetrics.testing.same import assert_same_as_single  # brings the trainer along, which few tests need

    return assert_same_as_single
