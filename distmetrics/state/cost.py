"""What a sync costs in a world of any size, from its plan alone. Pure: no process is needed.

Bytes are those that one rank receives. An all_gather brings every other rank's data, (W - 1)·n
bytes; an all_reduce as a ring brings 2·(W - 1)/W·n, whatever the world's size (Patarasu and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). So a large state that
can be reduced must be, and a small one is better gathered: a gather of a frame costs one latency,
and needs no agreement before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from distmetrics.collectives.exchange import HASH_BYTES, LARGE_WORLD, frame_size
from distmetrics.collectives.pack import Bucket
from distmetrics.state.plan import SyncPlan, reductions


@dataclass(frozen=True, slots=True)
class Cost:
    """Collectives of one sync, and the bytes that one rank receives in them."""

    rounds: int
    received: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rounds + other.rounds, self.received + other.received)


def cost(plan: SyncPlan) -> Cost:
    """Return what the plan costs: the first round, what is too large for it, and the lists.

    In a large world a plan with lists is taken to have lists of other lengths on other ranks, so
    that the hashes differ and frames are sent as well.
    """
    world_size = len(plan.sent)
    longest = max(plan.follow)
    if world_size > LARGE_WORLD:
        total = _all_reduce(2 * HASH_BYTES, world_size)
        if longest:
            total += _all_gather(frame_size(world_size), world_size)
    else:
        total = _all_gather(frame_size(world_size), world_size)
    if longest:
        total += _all_gather(longest, world_size)
    if not plan.rides_along:
        for bucket in plan.agreed.layout.buckets:
            total += _bucket(bucket, world_size)
    return total


def _bucket(bucket: Bucket, world_size: int) -> Cost:
    size = bucket.stop - bucket.start
    if bucket.key == "stack":
        return _all_gather(size, world_size)
    if not size:
        return Cost(0, 0)
    total = _all_reduce(size, world_size)
    if reductions(bucket) == 2:  # where the NaNs are, a byte an element
        total += _all_reduce(size // bucket.dtype.itemsize, world_size)
    return total


def cost_state_by_state(shapes: Iterable[tuple[int, int]], world_size: int) -> Cost:
    """Return what torchmetrics' own sync costs (``gather_all_tensors`` of version 1.9).

    For every state a barrier, a gather of its sizes unless it is a number, and a gather of the
    data.

    Args:
        shapes: ``(dimensions, bytes)`` of every tensor that is gathered; a list state that is not
            concatenated is one for each of its items.
        world_size: number of ranks.
    """
    total = Cost(0, 0)
    for ndim, nbytes in shapes:
        total += Cost(1, 0) + _all_gather(nbytes, world_size)
        if ndim:
            total += _all_gather(8 * ndim, world_size)
    return total


def _all_gather(nbytes: int, world_size: int) -> Cost:
    return Cost(1, (world_size - 1) * nbytes)


def _all_reduce(nbytes: int, world_size: int) -> Cost:
    return Cost(1, -(-2 * (world_size - 1) * nbytes // world_size))
