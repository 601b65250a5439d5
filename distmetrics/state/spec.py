"""What there is to sync: one record a state, in words that all metric libraries share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["sum", "mean", "max", "min", "stack", "cat", "items", "object", "each"]
# Folded to one tensor.
REDUCED = ("sum", "mean", "max", "min")
# Of a size that does not depend on the data: rides in the first round.
FIXED = (*REDUCED, "stack")


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One state of a metric.

    Attributes:
        name: of the attribute that holds it.
        kind: how the ranks' values become one. ``sum``, ``mean``, ``max``, ``min`` elementwise;
            ``stack``: one row a rank; ``cat``: rows joined in rank order; ``items``: lists joined
            in rank order, items unbroken; ``object``: lists of anything, joined in rank order;
            ``each``: anything, and ``merge`` makes one of it.
        finish: applied to the result where the metric brings a reduction of its own.
        shape: before the first update; ranks whose metrics were made with other arguments differ in
            it.
        start: for ``each``: what of the local value is sent.
        merge: for ``each``: called with the local value and, in rank order, what every rank has
            sent; returns the value of all ranks. It may change what was sent, and nothing of the
            local value.
    """

    name: str
    kind: Kind
    finish: Callable[[Any], Any] | None = None
    shape: tuple[int, ...] = ()
    start: Callable[[Any], Any] | None = None
    merge: Callable[[Any, list[Any]], Any] | None = None
