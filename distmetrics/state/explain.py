"""Show what a sync of metrics will do and cost, before anything is run.

Bytes are those that one rank receives. An all_gather brings every other rank's data, (W - 1)·n
bytes; an all_reduce as a ring brings 2·(W - 1)/W·n, whatever the world's size (Patarasu and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). So a large state that
can be reduced must be, and a small one is better gathered: a gather of a frame costs one latency,
and needs no agreement before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.exchange import HASH_BYTES, LARGE_WORLD, frame_size, inline_capacity
from distmetrics.collectives.pack import Bucket
from distmetrics.comm.current import current
from distmetrics.errors import InputError, StateError
from distmetrics.state.adapters import targets
from distmetrics.state.describe import describe
from distmetrics.state.metric_set import MetricSet, communicator_of
from distmetrics.state.plan import SyncPlan, count_of, plan, reductions
from distmetrics.state.received import FIXED


@dataclass(frozen=True, slots=True)
class Cost:
    """Collectives of one sync, and the bytes that one rank receives in them."""

    rounds: int
    received: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rounds + other.rounds, self.received + other.received)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one sync does and costs; ``print`` it.

    Attributes:
        plan: what is sent, and how it is combined.
        metrics: number of metrics with states.
        cost: collectives, and bytes that each rank receives.
        one_by_one: the same for torchmetrics' own sync, which gathers state by state.
        growing: paths of the states that grow with the data: their bytes are those of now.
    """

    plan: SyncPlan
    metrics: int
    cost: Cost
    one_by_one: Cost
    growing: tuple[str, ...]

    def __str__(self) -> str:
        metrics, ranks = count_of(self.metrics, "metric"), count_of(len(self.plan.sent), "rank")
        lines = [
            f"sync of {metrics} over {ranks}: {_text(self.cost)}",
            f"state by state, as torchmetrics does it: {_text(self.one_by_one)}",
            self.plan.describe(),
        ]
        if self.growing:
            shown = ", ".join(self.growing[:3]) + (", …" if len(self.growing) > 3 else "")
            lines.append(f"  what grows with the data is shown as it is now: {shown}")
        return "\n".join(lines)


def explain(metrics: Any, *, world_size: int | None = None) -> Explanation:
    """Return what :func:`sync_and_compute` would do with metrics, without a collective.

    Every rank is taken to hold what this one holds.

    Args:
        metrics: as for :func:`sync_and_compute`.
        world_size: default that of the communicator that a sync would use, or 2 where that is a
            world of one.

    Raises:
        StateError: ``metrics`` holds none.
        InputError: a world of fewer than two ranks syncs nothing.

    >>> from torchmetrics import MeanMetric
    >>> print(explain({"loss": MeanMetric()}, world_size=4))
    sync of 1 metric over 4 ranks: 1 collective, 96.0 KiB received by each rank
    state by state, as torchmetrics does it: 4 collectives, 24 bytes received by each rank
    2 states, 4 ranks, 1 collective
      sum   int64       1 tensors          8 bytes  in the first round
      sum   float32     2 tensors          8 bytes  in the first round
    """
    local = MetricSet(targets(metrics))
    if not local.targets:
        raise StateError(f"a {type(metrics).__name__} holds no metric that distmetrics knows")
    if world_size is None:
        world_size = max(2, communicator_of(local.targets, current()).world_size)
    if world_size < 2:
        raise InputError(
            f"explain: a world of {world_size} has nothing to sync", do="pass world_size=2 or more."
        )
    with torch.no_grad():
        local.updates = [1] * len(local.targets)  # as if each had been updated
        outgoing = describe(local, "", None)
    blobs = (outgoing.manifest.encode(),) * world_size
    sync_plan = plan(blobs, local.order, 0, inline_capacity(world_size))
    gathered = [each for *_, value in local.states for each in _gathered(value)]
    return Explanation(
        sync_plan,
        sum(bool(target.states) for target in local.targets),
        cost(sync_plan),
        cost_state_by_state(gathered, world_size),
        tuple(path for path, _, spec, _ in local.states if spec.kind not in FIXED),
    )


def _gathered(value: Any) -> Iterator[tuple[int, int]]:
    """Yield what torchmetrics gathers of one state: a tensor, or what a list holds."""
    for x in value if isinstance(value, list) else [value]:
        if isinstance(x, Tensor):
            yield x.ndim, x.nbytes


def _text(cost: Cost) -> str:
    return f"{count_of(cost.rounds, 'collective')}, {_size(cost.received)} received by each rank"


def _size(nbytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"


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
