"""Show what a sync of metrics will do and cost, before anything is run.

Bytes are those that one rank receives. An all_gather brings every other rank's data, (W - 1)·n
bytes; an all_reduce as a ring brings 2·(W - 1)/W·n, whatever the world's size (Patarasu and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). So a large state that
can be reduced must be, and a small one is better gathered: a gather of a frame costs one latency,
and needs no agreement before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.exchange import HASH_BYTES, LARGE_WORLD, frame_size, inline_capacity
from distmetrics.comm.communicator import current
from distmetrics.errors import InputError, StateError
from distmetrics.layouts.mesh import SAME, SHARD, Mesh, usual_roles
from distmetrics.metrics.adapters.base import communicator_of, parts_of, targets
from distmetrics.metrics.metric_set import MetricSet, describe
from distmetrics.metrics.plan import FIXED, SyncPlan, count_of, plan, reductions

_PROOF = 32  # bytes
_WORLD = "world"  # the axis of a mesh without a layout


@dataclass(frozen=True, slots=True)
class Cost:
    """A number of collectives, and the bytes that one rank receives in them."""

    rounds: int = 0
    received: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rounds + other.rounds, self.received + other.received)

    def __str__(self) -> str:
        return f"{count_of(self.rounds, 'collective')}, {_size(self.received)}"


def _gathered(nbytes: int, world_size: int) -> Cost:
    return Cost(1, (world_size - 1) * nbytes)


def _reduced(nbytes: int, world_size: int) -> Cost:
    return Cost(1, -(-2 * (world_size - 1) * nbytes // world_size))


def _size(nbytes: float) -> str:
    if nbytes < 1024:
        return f"{nbytes:.0f} bytes"
    power = min(int(math.log2(nbytes)) // 10, 3)
    return f"{nbytes / 1024**power:.1f} {('KiB', 'MiB', 'GiB')[power - 1]}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one sync does and costs; ``print`` it.

    Attributes:
        plan: what the shards send, and how it is combined.
        metrics: number of metrics with states.
        one_by_one: the cost of torchmetrics' own sync, which gathers state by state.
        growing: paths of the states that grow with the data: their bytes are those of now.
        mesh: of the layout, or of the world as one axis.
    """

    plan: SyncPlan
    metrics: int
    one_by_one: Cost
    growing: tuple[str, ...]
    mesh: Mesh

    @property
    def cost(self) -> Cost:
        """What a rank with values pays: collectives, and bytes that it receives."""
        return self.sync + self.proof + self.handed

    @property
    def sync(self) -> Cost:
        """What the sync among the shards costs."""
        return cost_of(self.plan) if _along(self.mesh, SHARD) > 1 else Cost()

    @property
    def proof(self) -> Cost:
        """What the proof costs that ranks which are said to hold the same do."""
        owners = _along(self.mesh, SHARD, SAME)
        return _reduced(_PROOF, owners) if self.mesh.axes(SAME) and owners > 1 else Cost()

    @property
    def handed(self) -> Cost:
        """What it costs to give ranks without values the results, if those fit into a frame."""
        given = len(self.mesh.ranks) // _along(self.mesh, SHARD, SAME)
        return _gathered(frame_size(given), given) if given > 1 else Cost()

    def __str__(self) -> str:
        ranks, shards = len(self.mesh.ranks), _along(self.mesh, SHARD)
        text = f"sync of {count_of(self.metrics, 'metric')} over {count_of(ranks, 'rank')}"
        one_by_one = f"state by state, as torchmetrics does it: {self.one_by_one} received"
        if _WORLD in self.mesh.sizes:
            lines = [f"{text}: {self.cost} received by each rank", f"{one_by_one} by each rank"]
        else:
            lines = [f"{text}, {count_of(shards, 'shard')}, bytes as received by each rank"]
            lines += self._layout()
            lines += [f"among the shards alone, {one_by_one}"] * (shards > 1)
        if shards > 1:
            lines.append(self.plan.describe())
        if self.growing:
            shown = ", ".join(self.growing[:3]) + (", …" if len(self.growing) > 3 else "")
            lines.append(f"  what grows with the data is shown as it is now: {shown}")
        return "\n".join(lines)

    def _layout(self) -> list[str]:
        """Say what the axes mean, and which ranks pay what."""
        mesh = self.mesh
        width = max(len(f"{axis} {size}") for axis, size in mesh.sizes.items())
        lines = [
            f"  {f'{axis} {n}':{width}}  {_meaning(mesh, axis)}" for axis, n in mesh.sizes.items()
        ]
        owners, ranks, shards = _along(mesh, SHARD, SAME), len(mesh.ranks), _along(mesh, SHARD)
        lines.append(f"a rank with values, of {owners}: {self.cost}")
        if shards > 1:
            lines.append(f"  {self.sync}, among {shards} shards")
        if self.proof.rounds:
            lines.append(f"  {self.proof}, for the proof, among {owners} ranks")
        if owners < ranks:
            given = ranks // owners
            lines += [
                f"  {self.handed}, to hand results over to {count_of(given - 1, 'rank')};",
                f"    a second where results take more than {_size(inline_capacity(given))}",
                f"a rank without, of {ranks - owners}: {self.handed}",
            ]
        return lines


def _along(mesh: Mesh, *roles: str) -> int:
    """Return the number of ranks that differ along the axes with some roles."""
    return math.prod(mesh.sizes[axis] for axis in mesh.axes(*roles))


def _meaning(mesh: Mesh, axis: str) -> str:
    role, size = mesh.roles[axis], mesh.sizes[axis]
    if size == 1:
        return "one rank"
    if role == SHARD:
        return "other samples: reduced over"
    if role == SAME:
        return f"the same samples: counted once, not {size} times, and proved to be the same"
    return f"only rank {role} has values: what the others pass is not looked at"


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
    if world_size is None:
        comm = communicator_of(local.targets, current())
        world_size = max(2, comm.world_size)
        layout = layout or (comm if comm.is_layout else None)
    mesh = getattr(layout, "mesh", None)
    if layout is None:
        mesh = Mesh({_WORLD: world_size}, {_WORLD: SHARD})
    elif not isinstance(mesh, Mesh):
        mesh = Mesh.of(layout, usual_roles(layout) | dict(roles))
    if layout is not None:
        world_size = max(2, _along(mesh, SHARD))
    if world_size < 2:
        raise InputError(
            f"explain: a world of {world_size} has nothing to sync", do="pass world_size=2 or more."
        )
    with torch.no_grad():
        local.updates = [1] * len(local.targets)  # as if each had been updated
        outgoing = describe(local, "", None)
    blobs = (outgoing.header.encode(),) * world_size
    return Explanation(
        plan(blobs, local.order, 0, inline_capacity(world_size)),
        sum(bool(target.states) for target in local.targets),
        _state_by_state([value for *_, value in local.states], world_size),
        tuple(path for path, _, spec, _ in local.states if spec.kind not in FIXED),
        mesh,
    )


def cost_of(plan: SyncPlan) -> Cost:
    """Return what the plan costs: the first round, what is too large for it, and the lists.

    In a large world a plan with lists is taken to have lists of other lengths on other ranks, so
    that the hashes differ and frames are sent as well.
    """
    world_size = len(plan.sent)
    longest = max(plan.follow)
    frames = _gathered(frame_size(world_size), world_size)
    total = frames
    if world_size > LARGE_WORLD:
        total = _reduced(2 * HASH_BYTES, world_size) + (frames if longest else Cost())
    if longest:
        total += _gathered(longest, world_size)
    for bucket in () if plan.is_inline else plan.agreed.layout.buckets:
        size = bucket.stop - bucket.start
        if bucket.key == "stack":
            total += _gathered(size, world_size)
        elif size:
            total += _reduced(size, world_size)
            if reductions(bucket) == 2:  # where the NaNs are, a byte an element
                total += _reduced(size // bucket.dtype.itemsize, world_size)
    return total


def _state_by_state(states: Iterable[Any], world_size: int) -> Cost:
    """Return what torchmetrics' own sync costs (``gather_all_tensors`` of version 1.9).

    For every tensor a barrier, a gather of its sizes unless it is a number, and a gather of the
    data.
    """
    total = Cost()
    for value in states:
        for x in parts_of(value):
            if isinstance(x, Tensor):
                total += Cost(rounds=1) + _gathered(x.nbytes, world_size)
                if x.ndim:
                    total += _gathered(8 * x.ndim, world_size)
    return total
