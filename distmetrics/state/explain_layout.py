"""Show what the axes of a mesh mean, and what a sync over them costs each rank. Pure.

A ring sends as many bytes as it receives, so each figure is both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distmetrics.collectives.exchange import frame_size, inline_capacity
from distmetrics.layouts.known import usual_roles
from distmetrics.layouts.mesh import SAME, SHARD, Mesh
from distmetrics.state.cost import Cost, gathered, reduced, size_text
from distmetrics.state.plan import count_of

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
