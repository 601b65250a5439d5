"""Metrics that show one state on some ranks, and have one each on others.

torchmetrics merges metrics of a collection whose states are equal after the first batch that a rank
saw, and from then on updates the first of them alone, also after a reset. Another rank may have
seen that they differ: then the states of the others are lost on the first rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from distmetrics.collectives.header import Header
from distmetrics.collectives.ops import gather_messages
from distmetrics.comm.communicator import Communicator
from distmetrics.message import Message, reading
from distmetrics.metrics.metric_set import MetricSet
from distmetrics.metrics.schema import Merged, lost


class Comparisons(Message, frozen=True):
    """For each pair of merged metrics, whether its states are equal here."""

    equal: tuple[bool, ...]


def check_merged(
    pairs: Sequence[Merged], metrics: MetricSet, header: Header, comm: Communicator
) -> None:
    """Check, in one round, that what some ranks have merged is equal on all.

    Raises:
        StateError: it is not; on every rank.
    """
    equal = metrics.are_equal([(pair.first, pair.other) for pair in pairs])
    paths = [target.path for target in metrics.targets]
    about = Header("states of compute groups", header.name, site=header.site)
    ranks = gather_messages(comm, Comparisons(tuple(equal)), about, "comparisons of states")
    with reading("comparisons of states"):
        columns = [*zip(pairs, *(each.equal for each in ranks), strict=True)]
    for pair, *column in columns:
        apart = [rank for rank, is_equal in enumerate(column) if not is_equal]
        if apart:
            raise lost(pair, apart, paths, header, comm.rank)
