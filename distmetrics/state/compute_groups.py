"""Metrics that show one state on some ranks, and have one each on others.

torchmetrics merges metrics of a collection whose states are equal after the first batch that a rank
saw, and from then on updates the first of them alone. Another rank may have seen that they differ:
then the states of the others are lost on the first rank. How often it has updated does not help:
the groups outlive a reset, so even one batch may have been seen by the first alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from distmetrics.collectives.manifest import Manifest
from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.base import Communicator
from distmetrics.errors import Ranks, StateError

UNDECIDED = -1  # the first of a metric's group, where no groups were formed


class Merged(NamedTuple):
    """Two metrics that show one state on some ranks.

    Attributes:
        first: the place of the metric that is updated there.
        other: the place of the one that shows its state.
        ranks: those.
    """

    first: int
    other: int
    ranks: tuple[int, ...]


def merged(
    firsts: Sequence[Sequence[int]],
    updated: Sequence[Sequence[bool]],
    paths: Sequence[str],
    manifests: Sequence[Manifest],
    rank: int,
) -> tuple[Merged, ...]:
    """Return metrics that are merged on some ranks, where others with data have formed no groups.

    Those must compare their states: see :func:`check_equal`.

    Args:
        firsts: by rank and metric, the place of the metric whose state it shows, or UNDECIDED.
        updated: by rank and metric, whether it was updated.
        paths: of the metrics.
        manifests: every rank's.
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
                raise _lost(pair, apart, paths, manifests[rank], rank, "No data was moved; every")
            if undecided:
                found.append(pair)
    return tuple(found)


def check_equal(
    pairs: Sequence[Merged],
    equal: Sequence[bool],
    paths: Sequence[str],
    manifest: Manifest,
    comm: Communicator,
) -> None:
    """Check, in one round, that what some ranks have merged is equal on all of them.

    Args:
        pairs: the metrics.
        equal: for each pair, whether its states are equal here.
        paths: of the metrics.
        manifest: of the sync.
        comm: who talks.

    Raises:
        StateError: it is not; on every rank.
    """
    read = partial(_flags, count=len(pairs))
    about = (comm, manifest.name, manifest.site)
    per_rank = gather_objects(equal, read, *about, op="states of compute groups")
    for pair, column in zip(pairs, zip(*per_rank, strict=True), strict=True):
        apart = [rank for rank, is_equal in enumerate(column) if not is_equal]
        if apart:
            raise _lost(pair, apart, paths, manifest, comm.rank)


def _flags(told: Any, count: int) -> list[bool]:
    """Return what a peer has told of so many pairs; raise anything for what is none."""
    flags = [*map(bool, told)]
    if len(flags) != count:
        raise ValueError(f"{len(flags)} comparisons of {count}")
    return flags


def _lost(
    pair: Merged,
    apart: Sequence[int],
    paths: Sequence[str],
    manifest: Manifest,
    rank: int,
    every: str = "Every",
) -> StateError:
    """Build the error for metrics that are merged on some ranks, and differ on others."""
    first, other = paths[pair.first], paths[pair.other]
    lines = dict.fromkeys(pair.ranks, f"one state for {first} and {other}")
    lines |= dict.fromkeys(apart, f"a state for {first}, and another for {other}")
    return StateError(
        [
            f"{manifest.call().op}: {other} shows the state of {first} on ",
            Ranks(pair.ranks),
            ", and has lost its own; on ",
            Ranks(apart),
            " they differ",
        ],
        per_rank={r: f"{line}  {manifest.site or ''}".rstrip() for r, line in lines.items()},
        notes=[f"{every} metric keeps its local state."],
        likely="compute groups: MetricCollection merges metrics whose states are equal after a "
        "rank's first batch, and updates one of them alone (Lightning-AI/torchmetrics#2596).",
        do="make the collection with compute_groups=False.",
        rank=rank,
        peers=pair.ranks,
        site=manifest.site,
    )
