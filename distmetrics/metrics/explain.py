"""Show what a sync of metrics will do and cost, before anything is run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.exchange import frame_size, inline_capacity
from distmetrics.comm.communicator import SingleCommunicator, current
from distmetrics.errors import InputError, StateError
from distmetrics.layouts.mesh import SAME, SHARD, Mesh, usual_roles
from distmetrics.metrics.adapters.base import communicator_of, parts_of, targets
from distmetrics.metrics.metric_set import MetricSet, describe
from distmetrics.metrics.plan import (
    FIXED,
    Cost,
    SyncPlan,
    count_of,
    gathered,
    plan,
    reduced,
    size_of,
)

_PROOF = 32  # bytes
_FLAT = ""  # the axis of a world without a layout


class Explanation(NamedTuple):
    """What one sync does and costs; ``print`` it."""

    plan: SyncPlan  # what the shards send, and how it is combined
    metrics: int  # with states
    shards: int  # ranks with other samples
    owners: int  # ranks with values
    ranks: int
    sync: Cost  # among the shards
    proof: Cost  # that ranks which are said to hold the same do
    handed: Cost  # to give ranks without values the results, if those fit into a frame
    one_by_one: Cost  # of torchmetrics' own sync, which gathers state by state
    growing: tuple[str, ...]  # paths of states that grow with the data: their bytes are of now
    mesh: Mesh

    @property
    def cost(self) -> Cost:
        """What a rank with values pays: collectives, and bytes that it receives."""
        return self.sync + self.proof + self.handed

    def __str__(self) -> str:
        shards, is_synced = count_of(self.shards, "shard"), self.shards > 1
        text = f"sync of {count_of(self.metrics, 'metric')} over {count_of(self.ranks, 'rank')}"
        theirs = f"state by state, as torchmetrics does it: {self.one_by_one} received"
        if _FLAT in self.mesh.sizes:
            lines = [f"{text}: {self.cost} received by each rank", f"{theirs} by each rank"]
        else:
            lines = [f"{text}, {shards}, bytes as received by each rank", *_axes(self.mesh)]
            lines.append(f"a rank with values, of {self.owners}: {self.cost}")
            lines += [f"  {self.sync}, among {shards}"] * is_synced
            if self.proof.rounds:
                lines.append(f"  {self.proof}, for the proof, among {self.owners} ranks")
            if self.owners < self.ranks:
                given = self.ranks // self.owners
                lines += [
                    f"  {self.handed}, to hand results over to {count_of(given - 1, 'rank')};",
                    f"    a second where results take more than {size_of(inline_capacity(given))}",
                    f"a rank without, of {self.ranks - self.owners}: {self.handed}",
                ]
            lines += [f"among the shards alone, {theirs}"] * is_synced
        lines += [self.plan.describe()] * is_synced
        if self.growing:
            shown = ", ".join(self.growing[:3]) + (", …" if len(self.growing) > 3 else "")
            lines.append(f"  what grows with the data is shown as it is now: {shown}")
        return "\n".join(lines)


def explain(
    metrics: Any, *, world_size: int | None = None, layout: Any = None, **roles: str | int
) -> Explanation:
    """Return what :func:`sync_and_compute` would do and cost, without a collective.

    It assumes that every rank holds what this one holds. ``print`` the result; its ``cost`` has
    the numbers of collectives and of bytes.

    Args:
        metrics: as for :func:`sync_and_compute`.
        world_size: number of ranks; default that of the communicator that a sync would use, or 2 if
            that is a world of one.
        layout: a :class:`~distmetrics.layout`, or sizes by axis, such as ``{"dp": 2, "tp": 2}``;
            default that of the communicator that a sync would use.
        roles: of the axes of ``layout``, as for :class:`~distmetrics.layout`; axes with the usual
            names have the usual roles.

    Raises:
        StateError: ``metrics`` holds no metric.
        InputError: ``world_size`` is below 2.
        ConfigurationError: an axis has no role.

    >>> from torchmetrics import MeanMetric
    >>> print(explain({"loss": MeanMetric()}, world_size=4))
    sync of 1 metric over 4 ranks: 1 collective, 96.0 KiB received by each rank
    state by state, as torchmetrics does it: 4 collectives, 24 bytes received by each rank
    2 states, 4 ranks, 1 collective
      sum   int64       1 tensors          8 bytes  in the first round
      sum   float32     2 tensors          8 bytes  in the first round
    """
    found = targets(metrics)
    if not found:
        raise StateError(f"a {type(metrics).__name__} holds no metric that distmetrics knows")
    if world_size is None:
        comm = communicator_of(found, current())
        world_size = max(2, comm.world_size)
        layout = layout or (None if comm.whole is comm else comm)
    if world_size < 2:
        raise InputError(
            f"explain: a world of {world_size} has nothing to sync", do="pass world_size=2 or more."
        )
    if layout is None:
        layout, roles = {_FLAT: world_size}, {_FLAT: SHARD}
    mesh = getattr(layout, "mesh", None)
    if not isinstance(mesh, Mesh):
        mesh = Mesh.of(layout, usual_roles(layout) | roles)
    shards, owners, ranks = _along(mesh, SHARD), _along(mesh, SHARD, SAME), len(mesh.ranks)
    world_size = max(2, shards)
    local = MetricSet(found, SingleCommunicator())
    with torch.no_grad():
        local.updates = [1] * len(found)  # as if each had been updated
        blobs = (describe(local, "", None)[0].encode(),) * world_size
    made = plan(blobs, local.order, 0, inline_capacity(world_size))
    given = ranks // owners
    return Explanation(
        made,
        sum(bool(target.states) for target in found),
        shards,
        owners,
        ranks,
        made.cost if shards > 1 else Cost(),
        reduced(_PROOF, owners) if mesh.axes(SAME) and owners > 1 else Cost(),
        gathered(frame_size(given), given) if given > 1 else Cost(),
        _state_by_state([state.value for state in local.states], world_size),
        tuple(state.path for state in local.states if state.spec.kind not in FIXED),
        mesh,
    )


def _along(mesh: Mesh, *roles: str) -> int:
    """Return how many ranks differ along the axes with some roles."""
    return math.prod(mesh.sizes[axis] for axis in mesh.axes(*roles))


def _axes(mesh: Mesh) -> Iterator[str]:
    """Say what each axis means."""
    width = max(len(f"{axis} {size}") for axis, size in mesh.sizes.items())
    for axis, size in mesh.sizes.items():
        role = mesh.roles[axis]
        meaning = f"only coordinate {role} has values: what the others pass is not looked at"
        if role == SHARD:
            meaning = "other samples: reduced over"
        elif role == SAME:
            meaning = f"the same samples: counted once, not {size} times, and proved to be the same"
        yield f"  {f'{axis} {size}':{width}}  {meaning}"


def _state_by_state(states: Iterable[Any], world_size: int) -> Cost:
    """Return what torchmetrics' own sync costs (``gather_all_tensors`` of version 1.9)."""
    total = Cost()
    for value in states:
        for x in parts_of(value):
            if isinstance(x, Tensor):
                total += Cost(rounds=1) + gathered(x.nbytes, world_size)  # after a barrier
                if x.ndim:
                    total += gathered(8 * x.ndim, world_size)  # of sizes
    return total
