"""What there is to sync: one record a state, in words that all metric libraries share."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

__all__ = ["KINDS", "REDUCED", "Kind", "StateSpec", "StateSpecs"]

Kind = Literal["sum", "mean", "max", "min", "stack", "cat", "items", "object", "each"]
KINDS: tuple[str, ...] = get_args(Kind)
REDUCED = ("sum", "mean", "max", "min")  # folded to one tensor; their size does not depend on the data


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One state of a metric.

    Attributes:
        name: of the attribute that holds it.
        kind: how the ranks' values become one. ``sum``, ``mean``, ``max``, ``min`` elementwise; ``stack``: one row a
            rank; ``cat``: rows joined in rank order; ``items``: lists joined in rank order, items unbroken;
            ``object``: lists of anything, joined in rank order; ``each``: anything, and ``merge`` makes one of it.
        finish: applied to the result where the metric brings a reduction of its own.
        shape: before the first update; ranks whose metrics were made with other arguments differ in it.
        start: for ``each``: what of the local value is sent.
        merge: for ``each``: called with the local value and, in rank order, what every rank has sent; returns the
            value of all ranks. It may change what was sent, and nothing of the local value.
    """

    name: str
    kind: Kind
    finish: Callable[[Any], Any] | None = None
    shape: tuple[int, ...] = ()
    start: Callable[[Any], Any] | None = None
    merge: Callable[[Any, list[Any]], Any] | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.kind}{list(self.shape) if self.shape else ''}"


@dataclass(frozen=True, slots=True, eq=False)
class StateSpecs:
    """The states of one metric, in an order that all ranks share.

    Compared by identity: an adapter returns the same object for metrics made alike, and what is derived from it is
    kept from one sync to the next.

    Attributes:
        each: the states.
        kept: names besides the states' that are changed while the state of all ranks is in.
        text: must be equal on all ranks; by default it tells the states.
        names: of the states; ``saved``: of all that must be put back.
        reduced: whether all states are folded to one tensor, as most metrics' are.
        fetch: returns the values of ``saved`` in a mapping.
    """

    each: tuple[StateSpec, ...]
    kept: tuple[str, ...]
    text: str = ""
    names: tuple[str, ...] = field(init=False)
    saved: tuple[str, ...] = field(init=False)
    reduced: bool = field(init=False)
    fetch: Callable[[Mapping[str, Any]], tuple[Any, ...]] = field(init=False)

    def __post_init__(self) -> None:
        names = tuple(spec.name for spec in self.each)
        saved = (*names, *self.kept)
        reduced = all(spec.kind in REDUCED for spec in self.each)
        fetch = operator.itemgetter(*saved) if len(saved) > 1 else lambda home: tuple(home[name] for name in saved)
        text = self.text or ", ".join(map(str, self.each))
        made = {"names": names, "saved": saved, "reduced": reduced, "fetch": fetch, "text": text}
        for name, value in made.items():
            object.__setattr__(self, name, value)
