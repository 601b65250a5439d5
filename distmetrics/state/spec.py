"""What there is to sync: one record a state, in words that all metric libraries share."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, get_args

Kind = Literal["sum", "mean", "max", "min", "stack", "cat", "items", "object", "each"]
KINDS: tuple[str, ...] = get_args(Kind)
REDUCED = (
    "sum",
    "mean",
    "max",
    "min",
)  # folded to one tensor; their size does not depend on the data
Rule = Literal["last", "equal", "alone"]


class Missing(Enum):
    """What is read in place of an attribute that is not in the metric's mapping.

    ``ABSENT``: there is none, and so it must be afterwards. ``MODULE``: it is a module, which is
    kept elsewhere.
    """

    ABSENT = "absent"
    MODULE = "module"


class Learned(NamedTuple):
    """An attribute that updating sets and that is no state: a rank without data lacks it.

    Attributes:
        name: of the attribute.
        rule: how it becomes that of all ranks. ``last``: every update overwrites it, so it is that
            of the last rank with data, as one process has it that saw the ranks' data in their
            order. ``equal``: an update derives it from what it was before, so ranks with data must
            have the same. ``alone``: an update adds to it, so only one rank may have data.
    """

    name: str
    rule: Rule


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One state of a metric.

    Attributes:
        name: of the attribute that holds it.
        kind: how the ranks' values become one. ``sum``, ``mean``, ``max``, ``min`` elementwise;
            ``stack``: one row a rank; ``cat``: rows joined in rank order; ``items``: lists joined
                in rank order, items unbroken;
            ``object``: lists of anything, joined in rank order; ``each``: anything, and ``merge``
                makes one of it.
        finish: applied to the result where the metric brings a reduction of its own.
        shape: before the first update; ranks whose metrics were made with other arguments differ in
            it.
        start: for ``each``: what of the local value is sent.
        merge: for ``each``: called with the local value and, in rank order, what every rank has
            sent; returns the value of all ranks. It may change what was sent, and nothing of the
            local value.
        optional: whether the attribute may be absent before the first update.
        read_only: for ``items``: whether computing leaves them as they are, so that this rank's own
            need no copy.
    """

    name: str
    kind: Kind
    finish: Callable[[Any], Any] | None = None
    shape: tuple[int, ...] = ()
    start: Callable[[Any], Any] | None = None
    merge: Callable[[Any, list[Any]], Any] | None = None
    optional: bool = False
    read_only: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.kind}{list(self.shape) if self.shape else ''}"


@dataclass(frozen=True, slots=True, eq=False)
class StateSpecs:
    """The states of one metric, in an order that all ranks share.

    Compared by identity: an adapter returns the same object for metrics made alike, and what is
    derived from it is kept from one sync to the next.

    Attributes:
        each: the states.
        kept: names besides the states' that are changed while the state of all ranks is in.
        text: must be equal on all ranks; by default it tells the states.
        learned: attributes that updating sets besides the states.
        names: of the states; ``saved``: of all that must be put back.
        loose: whether attributes may be absent, as those are that updating sets.
        fetch: returns the values of ``saved`` in a mapping.
    """

    each: tuple[StateSpec, ...]
    kept: tuple[str, ...]
    text: str = ""
    learned: tuple[Learned, ...] = ()
    names: tuple[str, ...] = field(init=False)
    saved: tuple[str, ...] = field(init=False)
    loose: bool = field(init=False)
    fetch: Callable[[Mapping[str, Any]], tuple[Any, ...]] = field(init=False)

    def __post_init__(self) -> None:
        names = tuple(spec.name for spec in self.each)
        saved = (*names, *self.kept, *(attribute.name for attribute in self.learned))
        loose = bool(self.learned) or any(spec.optional for spec in self.each)
        fetch: Callable[[Mapping[str, Any]], tuple[Any, ...]]
        if loose or len(saved) < 2:
            read = _read_loose if loose else operator.getitem
            fetch = lambda home: tuple([read(home, name) for name in saved])  # noqa: E731
        else:
            fetch = operator.itemgetter(*saved)
        text = self.text or ", ".join(map(str, self.each))
        if self.learned:  # other ranks must know of them as well: what is broadcast takes all
            text += "; " + ", ".join(attribute.name for attribute in self.learned)
        made = {"names": names, "saved": saved, "loose": loose, "fetch": fetch, "text": text}
        for name, value in made.items():
            object.__setattr__(self, name, value)


def _read_loose(home: Mapping[str, Any], name: str) -> Any:
    if name in home:
        return home[name]
    return Missing.MODULE if name in home.get("_modules", ()) else Missing.ABSENT
