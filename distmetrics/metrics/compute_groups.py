"""Metrics that show one state on some ranks, and have one each on others.

torchmetrics merges metrics of a collection whose states are equal after the first batch that a rank
saw, and from then on updates the first of them alone, also after a reset. Another rank may have
seen that they differ: then the states of the others are lost on the first rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from distmetrics.collectives.header import Header
from distmetrics.collectives.message import Message, reading
from distmetrics.collectives.ops import gather_messages
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import Ranks, StateError

UNDECIDED = -1  # the first of a metric's group, where no groups were formed


class Merged(NamedTuple):
    """The places of two metrics, of which the other shows the first one's state on some ranks."""

    first: int
    other: int
    ranks: tuple[int, ...]


def merged(
    firsts: Sequence[Sequence[int]],
    updated: Sequence[Sequence[bool]],
    paths: Sequence[str],
    headers: Sequence[Header],
    rank: int,
) -> tuple[Merged, ...]:
    """Return metrics that are merged on some ranks, where others with data have formed no groups.

    Those must compare their states: see :func:`check_merged`.

    Args:
        firsts: by rank and metric, the place of the metric whose state it shows, or UNDECIDED.
        updated: by rank and metric, whether it was updated.
        paths: of the metrics.
        headers: every rank's.
        rank: the rank that asks.

    Raises:
        StateError: a rank with data has formed groups that keep the metrics apart.
    """
    found = []
    for other, column in enumerate(zip(*firsts, strict=True)):
        for first in sorted({*column} - {UNDECIDED, other}):
            ranks = [r for r, place in enumerate(column) if place == first and updated[r][other]]
            with_data = [r for r, own in enumerate(updated) if own[first] or own[other]]
            pairs = {r: {firsts[r][first], firsts[r][other]} for r in with_data if ranks}
            undecided = [r for r, pair in pairs.items() if UNDECIDED in pair]
            apart = [r for r, pair in pairs.items() if len(pair) > 1 and r not in undecided]
            pair = Merged(first, other, tuple(ranks))
            if apart:
                raise _lost(pair, apart, paths, headers[rank], rank, "No data was moved; every")
            if undecided:
                found.append(pair)
    return tuple(found)


class Comparisons(Message, frozen=True):
    """For each pair of merged metrics, whether its states are equal here."""

    equal: tuple[bool, ...]


def check_merged(
    pairs: Sequence[Merged],
    equal: Sequence[bool],
    paths: Sequence[str],
    header: Header,
    comm: Communicator,
) -> None:
    """Check, in one round if there are pairs, that what some ranks have merged is equal on all.

    Args:
        pairs: the metrics.
        equal: for each pair, whether its states are equal here.
        paths: of all metrics.
        header: of the sync.
        comm: who talks.

    Raises:
        StateError: it is not; on every rank.
    """
    if not pairs:
        return
    about = Header("states of compute groups", header.name, site=header.site)
    ranks = gather_messages(comm, Comparisons(tuple(equal)), about, "comparisons of states")
    with reading("comparisons of states"):
        columns = [*zip(pairs, *(each.equal for each in ranks), strict=True)]
    for pair, *column in columns:
        apart = [rank for rank, is_equal in enumerate(column) if not is_equal]
        if apart:
            raise _lost(pair, apart, paths, header, comm.rank)


def _lost(
    pair: Merged,
    apart: Sequence[int],
    paths: Sequence[str],
    header: Header,
    rank: int,
    every: str = "Every",
) -> StateError:
    first, other = paths[pair.first], paths[pair.other]
    lines = dict.fromkeys(pair.ranks, f"one state for {first} and {other}")
    lines |= dict.fromkeys(apart, f"a state for {first}, and another for {other}")
    return StateError(
        [
            f"{header.call().op}: {other} shows the state of {first} on ",
            Ranks(pair.ranks),
            ", and has lost its own; on ",
            Ranks(apart),
            " they differ",
        ],
        per_rank={r: f"{line}  {header.site or ''}".rstrip() for r, line in lines.items()},
        notes=[f"{every} metric keeps its local state."],
        likely="compute groups: MetricCollection merges metrics whose states are equal after a "
        "rank's first batch, and updates one of them alone (Lightning-AI/torchmetrics#2596).",
        do="make the collection with compute_groups=False.",
        rank=rank,
        peers=pair.ranks,
        site=header.site,
    )
