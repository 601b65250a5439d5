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
from distmetrics.state.cost import Cost, gathered, reduced
from distmetrics.state.describe import describe
from distmetrics.state.explain_layout import LayoutCost, mesh_of, shards_of
from distmetrics.state.metric_set import MetricSet, communicator_of
from distmetrics.state.plan import SyncPlan, count_of, plan, reductions
from distmetrics.state.received import FIXED


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one sync does and costs; ``print`` it.

    Attributes:
        plan: what is sent, and how it is combined.
        metrics: number of metrics with states.
        cost: collectives, and bytes that each rank receives.
        one_by_one: the same for torchmetrics' own sync, which gathers state by state.
        growing: paths of the states that grow with the data: their bytes are those of now.
        over: what its layout means and costs, where the sync is over one; the rest is about the
            shards.
    """

    plan: SyncPlan
    metrics: int
    cost: Cost
    one_by_one: Cost
    growing: tuple[str, ...]
    over: LayoutCost | None = None

    def __str__(self) -> str:
        metrics, ranks = count_of(self.metrics, "metric"), count_of(len(self.plan.sent), "rank")
        state_by_state = f"state by state, as torchmetrics does it: {self.one_by_one} received"
        if self.over is not None:
            ranks = count_of(len(self.over.mesh.ranks), "rank")
            number = shards_of(self.over.mesh)
            shards = count_of(number, "shard")
            lines = [
                f"sync of {metrics} over {ranks}, {shards}, bytes as received by each rank",
                str(self.over),
            ]
            if number > 1:
                lines += [f"among the shards alone, {state_by_state}", self.plan.describe()]
        else:
            lines = [
                f"sync of {metrics} over {ranks}: {self.cost} received by each rank",
                f"{state_by_state} by each rank",
                self.plan.describe(),
            ]
        if self.growing:
            shown = ", ".join(self.growing[:3]) + (", …" if len(self.growing) > 3 else "")
            lines.append(f"  what grows with the data is shown as it is now: {shown}")
        return "\n".join(lines)


def explain(
    metrics: Any, *, world_size: int | None = None, layout: Any = None, **roles: str | int
) -> Explanation:
    """Return what :func:`sync_and_compute` would do with metrics, without a collective.

    Every rank is taken to hold what this one holds.

    Args:
        metrics: as for :func:`sync_and_compute`.
        world_size: default that of the communicator that a sync would use, or 2 where that is a
            world of one.
        layout: a :class:`~distmetrics.layout`, or sizes by axis of one on paper; default that of
            the communicator that a sync would use.
        roles: of the axes of ``layout``, as :class:`~distmetrics.layout` takes them; those with the
            usual names have the usual ones.

    Raises:
        StateError: ``metrics`` holds none.
        InputError: a world of fewer than two ranks syncs nothing.
        ConfigurationError: an axis has no role.

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
    mesh = None
    if world_size is None:
        comm = communicator_of(local.targets, current())
        world_size = max(2, comm.world_size)
        layout = layout or (comm if hasattr(comm, "mesh") else None)
    if layout is not None:
        mesh = mesh_of(layout, roles)
        world_size = max(2, shards_of(mesh))
    if world_size < 2:
        raise InputError(
            f"explain: a world of {world_size} has nothing to sync", do="pass world_size=2 or more."
        )
    with torch.no_grad():
        local.updates = [1] * len(local.targets)  # as if each had been updated
        outgoing = describe(local, "", None)
    blobs = (outgoing.manifest.encode(),) * world_size
    sync_plan = plan(blobs, local.order, 0, inline_capacity(world_size))
    tensors = [each for *_, value in local.states for each in _gathered(value)]
    sync_cost = cost(sync_plan)
    over = None if mesh is None else LayoutCost.of(mesh, sync_cost)
    return Explanation(
        sync_plan,
        sum(bool(target.states) for target in local.targets),
        sync_cost if over is None else over.total,
        cost_state_by_state(tensors, world_size),
        tuple(path for path, _, spec, _ in local.states if spec.kind not in FIXED),
        over,
    )


def _gathered(value: Any) -> Iterator[tuple[int, int]]:
    """Yield what torchmetrics gathers of one state: a tensor, or what a list holds."""
    for x in value if isinstance(value, list) else [value]:
        if isinstance(x, Tensor):
            yield x.ndim, x.nbytes


def cost(plan: SyncPlan) -> Cost:
    """Return what the plan costs: the first round, what is too large for it, and the lists.

    In a large world a plan with lists is taken to have lists of other lengths on other ranks, so
    that the hashes differ and frames are sent as well.
    """
    world_size = len(plan.sent)
    longest = max(plan.follow)
    if world_size > LARGE_WORLD:
        total = reduced(2 * HASH_BYTES, world_size)
        if longest:
            total += gathered(frame_size(world_size), world_size)
    else:
        total = gathered(frame_size(world_size), world_size)
    if longest:
        total += gathered(longest, world_size)
    if not plan.rides_along:
        for bucket in plan.agreed.layout.buckets:
            total += _bucket(bucket, world_size)
    return total


def _bucket(bucket: Bucket, world_size: int) -> Cost:
    size = bucket.stop - bucket.start
    if bucket.key == "stack":
        return gathered(size, world_size)
    if not size:
        return Cost(0, 0)
    total = reduced(size, world_size)
    if reductions(bucket) == 2:  # where the NaNs are, a byte an element
        total += reduced(size // bucket.dtype.itemsize, world_size)
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
        total += Cost(1, 0) + gathered(nbytes, world_size)
        if ndim:
            total += gathered(8 * ndim, world_size)
    return total
