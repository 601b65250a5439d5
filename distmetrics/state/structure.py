"""What metrics have in common whatever they hold: made once, kept from one sync to the next. Pure.

All values that a sync reads from the metrics' mappings, and puts back, make one sequence; a
structure knows the places in it. So a sync of hundreds of states costs a handful of operations on
sequences, and not several a state.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from distmetrics.state.adapters.base import Adapter, Roster, Target
from distmetrics.state.plan import INLINE, UPDATES
from distmetrics.state.spec import REDUCED, Learned, Missing, StateSpec, StateSpecs

Pick = Callable[[Sequence[Any]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """The states of metrics, and where they lie among all values that are read and put back.

    Attributes:
        tree: a text that must be equal on all ranks.
        order: paths of all states, after that of the update counts.
        specs: of the states; ``owners``: the place of each one's metric among those that are
            counted.
        inline: picks, out of the states, those of a size that does not depend on the data;
            ``inline_paths`` and ``inline_kinds``: theirs, after those of the update counts;
                ``rest``: the places of the others.
        unfolded: the places of the states that are not folded to one tensor; most metrics have
            none.
        learned: attributes that updating sets besides the states: path, place of the metric as for
            ``owners``, rule.
        loose: whether any attribute may be absent.
        saved: for each metric, the names that are read and put back.
        states: picks the states out of all values; ``counts``: how often metrics were updated,
            where a metric's mapping says so; ``flags``: whether they hold the state of all ranks;
            ``lessons``: what was learned.
        counted: places of the metrics that have a count in ``counts``, among the targets.
        arrange: puts states, marks, counts and what was learned, in this order, into the order of
            all values.
        marks: what else to set while the state of all ranks is in.
        memo: what was made of the last sync, for the next.
    """

    tree: str
    order: tuple[str, ...]
    specs: tuple[StateSpec, ...]
    owners: tuple[int, ...]
    inline: Pick
    inline_paths: tuple[str, ...]
    inline_kinds: tuple[str, ...]
    rest: tuple[int, ...]
    unfolded: tuple[int, ...]
    learned: tuple[tuple[str, int, Learned], ...]
    loose: bool
    saved: tuple[tuple[str, ...], ...]
    states: Pick
    counts: Pick
    flags: Pick
    lessons: Pick
    counted: tuple[int, ...]
    arrange: Pick
    marks: tuple[Any, ...]
    memo: dict[str, Any] = field(default_factory=dict)

    def read(self, found: Iterable[Target]) -> list[Any]:
        """Return all values of the metrics."""
        return list(
            itertools.chain.from_iterable([target.specs.fetch(target.home) for target in found])
        )

    def write(self, found: Sequence[Target], values: Iterable[Any]) -> None:
        """Put all values into the metrics."""
        rest = iter(values)
        for target, names in zip(found, self.saved, strict=True):
            target.home.update(zip(names, rest))  # noqa: B905  (as many as there are names; the rest is the next one's)
        if self.loose:
            for target, names in zip(found, self.saved, strict=True):
                for name in [name for name in names if isinstance(target.home[name], Missing)]:
                    del target.home[name]


def structure_of(found: Sequence[Target]) -> Structure:
    """Return the structure of metrics."""
    if not isinstance(found, Roster):
        return _structure_of(found)
    structure: Structure | None = found.kept.get("structure")
    if structure is None:
        structure = found.kept["structure"] = _structure_of(found)
    return structure


def _structure_of(found: Sequence[Target]) -> Structure:
    return _structure(
        tuple([(path, type(metric).__name__, specs, how) for path, metric, how, specs, _ in found])
    )


@functools.lru_cache(maxsize=256)
def _structure(metrics: tuple[tuple[str, str, StateSpecs, Adapter], ...]) -> Structure:
    paths = [
        f"{path}.{spec.name}" if path else spec.name
        for path, _, specs, _ in metrics
        for spec in specs.each
    ]
    texts = [
        f"{f'{path}: ' if path else ''}{kind}({specs.text})" for path, kind, specs, _ in metrics
    ]
    each = tuple(spec for _, _, specs, _ in metrics for spec in specs.each)
    counted = tuple(
        index
        for index, (*_, specs, how) in enumerate(metrics)
        if specs.each or specs.learned or how.counter
    )
    owners = tuple(
        counted.index(index) for index, (_, _, specs, _) in enumerate(metrics) for _ in specs.each
    )
    inline = [place for place, spec in enumerate(each) if spec.kind in INLINE]
    learned = [
        (f"{path}.{attribute.name}" if path else attribute.name, counted.index(index), attribute)
        for index, (path, _, specs, _) in enumerate(metrics)
        for attribute in specs.learned
    ]
    return Structure(
        tree="; ".join(texts),
        order=(UPDATES, *paths),
        specs=each,
        owners=owners,
        inline=_picker(inline),
        inline_paths=(UPDATES, *(paths[place] for place in inline)),
        inline_kinds=("sum", *(each[place].kind for place in inline)),
        rest=tuple(place for place, spec in enumerate(each) if spec.kind not in INLINE),
        unfolded=tuple(place for place, spec in enumerate(each) if spec.kind not in REDUCED),
        learned=tuple(learned),
        loose=any(specs.loose for _, _, specs, _ in metrics),
        saved=tuple(specs.saved for _, _, specs, _ in metrics),
        counted=counted,
        **_places(metrics, len(each), counted),
    )


def _places(
    metrics: Sequence[tuple[str, str, StateSpecs, Adapter]], states: int, counted: tuple[int, ...]
) -> dict[str, Any]:
    """Find where states, marks, counts, flags and the rest lie among all values, and how to bring
    new ones there.
    """
    marks = [
        how.marks[name] for _, _, specs, how in metrics for name in specs.kept if name in how.marks
    ]
    lies: dict[str, list[int]] = {"state": [], "mark": [], "count": [], "flag": [], "lesson": []}
    first_of = {"state": 0, "mark": states, "count": states + len(marks)}
    first_of["lesson"] = first_of["count"] + len(counted)
    come: list[
        int
    ] = []  # for each of all values, its place among states, marks, counts and what was learned
    for index, (_, _, specs, how) in enumerate(metrics):
        for position, name in enumerate(specs.saved):
            what = (
                "state" if position < len(specs.each) else "mark" if name in how.marks else "count"
            )
            what = "lesson" if position >= len(specs.each) + len(specs.kept) else what
            if what == "mark" and name == how.flag:
                lies["flag"].append(len(come))
            nth = counted.index(index) if what == "count" else len(lies[what])
            lies[what].append(len(come))
            come.append(first_of[what] + nth)
    return {
        "states": _picker(lies["state"]),
        "counts": _picker(lies["count"]),
        "flags": _picker(lies["flag"]),
        "lessons": _picker(lies["lesson"]),
        "arrange": _picker(come),
        "marks": tuple(marks),
    }


def _picker(places: Sequence[int]) -> Pick:
    """Return what picks the elements at ``places`` out of a sequence, always as a tuple."""
    if len(places) == 1:
        return lambda values: (values[places[0]],)
    return operator.itemgetter(*places) if places else lambda _: ()
