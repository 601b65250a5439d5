"""Which places of an order a rank's batches take; pure functions of counts.

Two layouts, both with every place on exactly one rank. ``RUNS`` gives each rank one contiguous run:
runs joined in rank order are the data in its order, which is what a metric that keeps lists ends up
with. ``ROUNDS`` cuts the order into rounds of one batch a rank: the ranks' n-th batches joined are
the n-th round, which is what code that gathers every step expects.

Both give every rank the same number of batches wherever each rank can have a sample for each, by
making the last batches smaller. Ranks that take different numbers of steps would wait for each
other in a forward pass that has a collective in it.
"""

from collections.abc import Callable
from typing import NamedTuple


def run_of(count: int, world_size: int, rank: int) -> range:
    """Return a rank's contiguous run of ``count`` places; runs differ by one place at most.

    >>> [list(run_of(5, 2, rank)) for rank in range(2)]
    [[0, 1], [2, 3, 4]]
    """
    return range(count * rank // world_size, count * (rank + 1) // world_size)


def every_nth(count: int, world_size: int, rank: int) -> range:
    """Return every ``world_size``-th place from the rank's own on.

    >>> [list(every_nth(5, 2, rank)) for rank in range(2)]
    [[0, 2, 4], [1, 3]]
    """
    return range(rank, count, world_size)


def runs(count: int, batch_size: int, world_size: int, rank: int) -> list[range]:
    """Return the batches of a rank whose share is one contiguous run.

    Args:
        count: number of places.
        batch_size: the most places in a batch.
        world_size: number of ranks.
        rank: the rank.

    >>> [runs(9, 2, 2, rank) for rank in range(2)]
    [[range(0, 2), range(2, 3), range(3, 4)], [range(4, 6), range(6, 8), range(8, 9)]]
    """
    share = run_of(count, world_size, rank)
    largest_share = -(-count // world_size)
    steps = -(-largest_share // batch_size)
    batches = []
    start = share.start
    for later in reversed(range(min(steps, len(share)))):
        end = min(start + batch_size, share.stop - later)  # a place for each later batch
        batches.append(range(start, end))
        start = end
    return batches


def rounds(count: int, batch_size: int, world_size: int, rank: int) -> list[range]:
    """Return the batches of a rank that takes a part of each round; arguments as :func:`runs`.

    >>> [rounds(9, 2, 2, rank) for rank in range(2)]
    [[range(0, 2), range(4, 6), range(7, 8)], [range(2, 4), range(6, 7), range(8, 9)]]
    """
    largest = batch_size * world_size
    batches = []
    start = 0
    for later in reversed(range(-(-count // largest))):
        left = count - start
        wanted = max(left - later * world_size, world_size)  # a place a rank for each later round
        size = min(largest, wanted, left)
        first = -(-size * rank // world_size)
        end = -(-size * (rank + 1) // world_size)
        if first < end:
            batches.append(range(start + first, start + end))
        start += size
    return batches


class Layout(NamedTuple):
    """A way to deal out an order.

    Attributes:
        share: of single places: count, world size and rank to the rank's places.
        batches: count, batch size, world size and rank to the places of the rank's batches.
    """

    share: Callable[[int, int, int], range]
    batches: Callable[[int, int, int, int], list[range]]


RUNS = Layout(run_of, runs)
ROUNDS = Layout(every_nth, rounds)
