"""Show what a sync of metrics will do and cost, before anything is run.

Bytes are those that one rank receives. An all_gather brings every other rank's data, (W - 1)·n
bytes; an all_reduce as a ring brings 2·(W - 1)/W·n, whatever the world's size (Patarasu and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). So a large state that
can be reduced must be, and a small one is better gathered: a gather of a frame costs one latency,
and needs no agreement before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.buckets import Bucket
from distmetrics.collectives.exchange import HASH_BYTES, LARGE_WORLD, frame_size, inline_capacity
from distmetrics.comm.communicator import current
from distmetrics.errors import InputError, StateError
from distmetrics.layouts.mesh import SAME, SHARD, Mesh, usual_roles
from distmetrics.metrics.adapters import targets
from distmetrics.metrics.metric_set import MetricSet, communicator_of, describe
from distmetrics.metrics.plan import SyncPlan, count_of, plan, reductions
from distmetrics.metrics.schema import FIXED


@dataclass(frozen=True, slots=True)
class Cost:
    """Collectives of one sync, and the bytes that one rank receives in them."""

    rounds: int
    received: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rounds + other.rounds, self.received + other.received)

    def __str__(self) -> str:
        return f"{count_of(self.rounds, 'collective')}, {size_text(self.received)}"


def gathered(nbytes: int, world_size: int) -> Cost:
    """Return the cost of an all_gather of so many bytes of each rank."""
    return Cost(1, (world_size - 1) * nbytes)


def reduced(nbytes: int, world_size: int) -> Cost:
    """Return the cost of an all_reduce, as a ring."""
    return Cost(1, -(-2 * (world_size - 1) * nbytes // world_size))


def size_text(nbytes: float) -> str:
    """Return a number of bytes in words.

    >>> size_text(96), size_text(98304)
    ('96 bytes', '96.0 KiB')
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"


_PROOF = 32  # bytes


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """What a sync over a layout costs.

    Attributes:
        mesh: axes, sizes and roles.
        sync: among the shards.
        proof: that ranks which are said to hold the same do.
        handed: for the results that ranks without values are given, if they fit into a frame.
        total: of a rank with values; a rank without is only given the result.
    """

    mesh: Mesh
    sync: Cost
    proof: Cost
    handed: Cost

    @classmethod
    def of(cls, mesh: Mesh, sync: Cost) -> LayoutCost:
        """Return the cost over a mesh of a sync that costs so much among its shards."""
        nothing = Cost(0, 0)
        owners = _owners(mesh)
        proof = reduced(_PROOF, owners) if mesh.axes(SAME) and owners > 1 else nothing
        handed = nothing
        given = _along(mesh, mesh.owned)
        if given > 1:
            handed = gathered(frame_size(given), given)
        return cls(mesh, sync if shards_of(mesh) > 1 else nothing, proof, handed)

    @property
    def total(self) -> Cost:
        """Return all of a rank with values."""
        return self.sync + self.proof + self.handed

    def __str__(self) -> str:
        mesh = self.mesh
        width = max(len(f"{axis} {size}") for axis, size in mesh.sizes.items())
        lines = []
        for axis, size in mesh.sizes.items():
            lines.append(f"  {f'{axis} {size}':{width}}  {_meaning(mesh, axis)}")
        owners, ranks = _owners(mesh), len(mesh.ranks)
        lines.append(f"a rank with values, of {owners}: {self.total}")
        if shards_of(mesh) > 1:
            lines.append(f"  {self.sync}, among {shards_of(mesh)} shards")
        if self.proof.rounds:
            lines.append(f"  {self.proof}, for the proof, among {owners} ranks")
        if owners < ranks:
            given = _along(mesh, mesh.owned)
            most = size_text(inline_capacity(given))
            lines += [
                f"  {self.handed}, to hand results over to {count_of(given - 1, 'rank')};",
                f"    a second where results take more than {most}",
                f"a rank without, of {ranks - owners}: {self.handed}",
            ]
        return "\n".join(lines)


def mesh_of(layout: Any, roles: Mapping[str, Any]) -> Mesh:
    """Return the mesh of a layout that there is, or of sizes by axis on paper.

    Raises:
        ConfigurationError: an axis has no role.
    """
    known = getattr(layout, "mesh", None)
    if isinstance(known, Mesh):
        return known
    return Mesh.of(layout, usual_roles(layout) | dict(roles))


def shards_of(mesh: Mesh) -> int:
    """Return the number of shards."""
    return _along(mesh, mesh.axes(SHARD))


def _owners(mesh: Mesh) -> int:
    return _along(mesh, mesh.axes(SHARD, SAME))


def _along(mesh: Mesh, axes: list[str]) -> int:
    return math.prod(mesh.sizes[axis] for axis in axes)


def _meaning(mesh: Mesh, axis: str) -> str:
    role, size = mesh.roles[axis], mesh.sizes[axis]
    if size == 1:
        return "one rank"
    if role == SHARD:
        return "other samples: reduced over"
    if role == SAME:
        return f"the same samples: counted once, not {size} times, and proved to be the same"
    return f"only rank {role} has values: what the others pass is not looked at"


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
        layout = layout or (comm if comm.is_layout else None)
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
    blobs = (outgoing.header.encode(),) * world_size
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
    if not plan.is_inline:
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
