"""Whether the ranks log the same names.

A name that one rank logs in each of its batches and another in none has the value of the former's
samples alone. That is right if the condition is on the data, as it would be in one process, and
wrong if it is on the rank.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.base import Communicator, call_site
from distmetrics.errors import MismatchError, Site, compose, who
from distmetrics.train.sums import Key, Record

Table = Mapping[Key, Record]
Batches = Mapping[int, int]  # how many there were of each loader
Lines = Mapping[Key, Site | None]  # where a name was logged first

_SURE = 2  # batches on each rank: with one, a condition on the data looks like one on the rank half of the time


class _OneSided(NamedTuple):
    """A name that some ranks log in every batch, and others never.

    Attributes:
        there: how many batches each rank had that had any.
    """

    key: Key
    always: list[int]
    never: list[int]
    there: dict[int, int]

    @property
    def sure(self) -> bool:
        """Whether there were batches enough to say so."""
        return min(self.there[rank] for rank in (*self.always, *self.never)) >= _SURE


def check_names(
    tables: Sequence[Table],
    batches: Sequence[Batches],
    lines: Lines,
    comm: Communicator,
    name: str,
    *,
    strict: bool,
) -> None:
    """Refuse, or warn of, a name that some ranks log in every batch and others in none; every rank
    must call it.

    Args:
        tables: what each rank logged, the same on all ranks.
        batches: how many it had.
        lines: where this rank logged it.
        comm: who talks, if there is something to say.
        name: of the exchange.
        strict: False only warns. One batch on a rank only warns too: that may well be the data.

    Raises:
        MismatchError: there is such a name (on every rank).
    """
    found = list(_one_sided(tables, batches))
    sure = [each for each in found if each.sure] if strict else []
    if sure:
        raise MismatchError(
            _text(sure, lines, comm, name), rank=comm.rank, peers=range(comm.world_size)
        )
    if comm.rank == 0:
        for each in found:
            warnings.warn(
                f"{each.key.label!r} was logged in every batch of {who(each.always)} and in no "
                "batch of "
                f"{who(each.never)}: samples of the latter are not in its value. If self.log is "
                "under a condition on "
                "the rank, log on every rank, or with rank_zero_only=True what is rank 0's alone.",
                stacklevel=2,
            )


def _one_sided(tables: Sequence[Table], batches: Sequence[Batches]) -> Iterator[_OneSided]:
    if len(tables) == 1:
        return
    for key in {
        key: None for table in tables for key, record in table.items() if _of_all_ranks(record)
    }:
        there = {
            rank: counts[key.loader]
            for rank, counts in enumerate(batches)
            if counts.get(key.loader)
        }
        never = [rank for rank in there if key not in tables[rank]]
        always = [
            rank for rank in there if key in tables[rank] and tables[rank][key].steps >= there[rank]
        ]
        if never and always:
            yield _OneSided(key, always, never, there)


def _of_all_ranks(record: Record) -> bool:
    """Whether each rank's calls count; a metric object's value is over all ranks, whoever logs it."""
    return record.kind.scope == "all ranks" and not record.kind.metric


def _text(found: Sequence[_OneSided], lines: Lines, comm: Communicator, name: str) -> str:
    first = found[0]
    sites: list[Site | None] = gather_objects(
        lines.get(first.key), comm, f"{name}, where from", call_site()
    )
    told = {}
    for rank, site in enumerate(sites):
        batches = first.there.get(rank, 0)
        where = f", first at {site}" if site else ""
        if rank in first.never:
            told[rank] = f"in none of its {batches} batches"
        elif rank in first.always:
            told[rank] = f"in each of its {batches} batches{where}"
        else:
            told[rank] = f"in some of its {batches} batches{where}" if batches else "had no batch"
    others = ", ".join(f"{each.key.label!r} by {who(each.always)}" for each in found[1:6])
    more = f" and {len(found) - 6} more" if len(found) > 6 else ""
    return compose(
        f"only some ranks log {first.key.label!r}",
        told,
        notes=[f"Likewise: {others}{more}."] if others else [],
        likely="a condition on the rank around self.log, or the rank in the name: the value is "
        "of a part of the data.",
        do="log the name on every rank; with rank_zero_only=True what is rank 0's alone. If the "
        "condition is on the "
        "data, Trainer(require_same_names=False) only warns.",
    )
