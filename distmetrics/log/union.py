"""Names that ranks send though not all have logged them, so that all send the same ones.

In a large world ranks compare a hash before they tell each other anything else, and hashes differ
where ranks log other names, as stages of a pipeline do. So from the second flush on each sends the
numbers of all names that ranks had logged in the first, and of each name whether it has logged it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from distmetrics.log.names import Names, join, placed
from distmetrics.log.snapshot import Snapshot

_SPARE = 64  # names that nobody logs any more, besides as many as are logged


@dataclass
class Known:
    """What all ranks of a communicator know from flushes before.

    Attributes:
        sets: names by digest.
        union: the names that a rank sends which logs no others; None if all log the same.
    """

    sets: dict[str, Names] = field(default_factory=dict)
    union: Names | None = None


def widened(logged: Snapshot, union: Names | None) -> Snapshot:
    """Return what a rank sends for what it has logged: all names of a union, if it has no others.

    >>> import torch
    >>> from distmetrics.log.kinds import MAX
    >>> mine = Snapshot(Names({"a": MAX}), torch.tensor([5.0]), torch.zeros(0), {}, None, None)
    >>> widened(mine, Names({"a": MAX.maybe(), "b": MAX.maybe()})).numbers
    tensor([5., 1., -inf, -inf])
    """
    names = logged.names
    if union is None:
        return logged
    for name, kind in names.kinds.items():
        if union.kinds.get(name) is not kind.maybe():
            return logged
    return logged._replace(names=union, numbers=placed(logged.numbers, names, union))


def union_after(parts: Iterable[Names], row: Collection[str]) -> Names | None:
    """Return the union for the next flush; the same on all ranks.

    Args:
        parts: the names that ranks have sent.
        row: what came of it, at least one entry a name.
    """
    whole, _ = join(parts)
    kinds = {name: kind if kind.plain else kind.maybe() for name, kind in whole.kinds.items()}
    is_alike = len([*parts]) == 1 and not any(kind.plain for kind in whole.kinds.values())
    is_old = len(kinds) > 2 * len(row) + _SPARE
    return None if is_alike or is_old else Names(kinds)
