"""Axes of ranks and what they mean. Pure.

Ranks are numbered as the communicator of the whole mesh numbers them, row by row: the last axis is
the one whose neighbours have adjacent numbers.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distmetrics.errors import ConfigurationError

Coordinates = tuple[int, ...]
Role = str | int
SHARD, SAME = "shard", "same"
_ENDS = ("first", "last")
_ROLES = '"shard" (other samples), "same" (the same samples), "first", "last" or a number'


@dataclass(frozen=True)
class Mesh:
    """Ranks along axes, each with a role.

    Attributes:
        sizes: number of ranks along each axis, by name.
        roles: of each axis: "shard", "same", or the coordinate that alone has the values.
    """

    sizes: Mapping[str, int]
    roles: Mapping[str, Role]

    @classmethod
    def of(cls, sizes: Mapping[str, int], roles: Mapping[str, Any]) -> Mesh:
        """Return a mesh.

        Raises:
            ConfigurationError: an axis has no role, or a role no axis; or it is none.
        """
        shown = ", ".join(f"{axis} ({size})" for axis, size in sizes.items())
        for axis in sizes:
            if axis not in roles:
                raise ConfigurationError(
                    f"the axis {axis} has no role; the axes are {shown}",
                    do=f"say what its ranks hold, {axis}= {_ROLES}: nothing is guessed.",
                )
        checked: dict[str, Role] = {}
        for axis, role in roles.items():
            if axis not in sizes:
                raise ConfigurationError(f"there is no axis {axis}; the axes are {shown or 'none'}")
            checked[axis] = _checked(axis, sizes[axis], role)
        return cls(dict(sizes), checked)

    @property
    def ranks(self) -> range:
        """Return all ranks."""
        return range(math.prod(self.sizes.values()))

    def coordinates(self, rank: int) -> Coordinates:
        """Return where a rank is along each axis."""
        place = []
        for size in reversed([*self.sizes.values()]):
            rank, here = divmod(rank, size)
            place.append(here)
        return tuple(reversed(place))

    def axes(self, *roles: Role) -> list[str]:
        """Return the axes with one of some roles."""
        return [axis for axis in self.sizes if self.roles[axis] in roles]

    @functools.cached_property
    def owned(self) -> list[str]:
        """Return the axes along which one coordinate has the values."""
        return [axis for axis in self.sizes if isinstance(self.roles[axis], int)]

    def owns(self, rank: int) -> bool:
        """True if a rank has values: along each axis with an owner it is that one."""
        place = self.place(rank)
        return all(place[axis] == self.roles[axis] for axis in self.owned)

    @functools.cached_property
    def owners(self) -> list[int]:
        """Return the ranks that have values."""
        return [rank for rank in self.ranks if self.owns(rank)]

    def place(self, rank: int) -> dict[str, int]:
        """Return where a rank is, by axis."""
        return dict(zip(self.sizes, self.coordinates(rank), strict=True))

    def places(self, axes: Sequence[str]) -> list[Coordinates]:
        """Return where each rank is along some axes."""
        spans = [range(n) if axis in axes else (None,) * n for axis, n in self.sizes.items()]
        every = itertools.product(*spans)
        return [tuple(here for here in place if here is not None) for place in every]

    def along(self, rank: int, axes: Iterable[str]) -> list[int]:
        """Return the ranks that differ from one only along some axes, in order."""
        varied = set(axes)
        here = self.place(rank)
        spans = [range(n) if a in varied else [here[a]] for a, n in self.sizes.items()]
        return [self.rank_at(place) for place in itertools.product(*spans)]

    def rank_at(self, place: Iterable[int]) -> int:
        """Return the rank at some coordinates."""
        rank = 0
        for here, size in zip(place, self.sizes.values(), strict=True):
            rank = rank * size + here
        return rank

    def __str__(self) -> str:
        parts = [f"{axis} {size} {self.roles[axis]}" for axis, size in self.sizes.items()]
        return ", ".join(parts)


def _checked(axis: str, size: int, role: Any) -> Role:
    """Return a role as it is kept.

    Raises:
        ConfigurationError: it is none.
    """
    if role in (SHARD, SAME):
        return str(role)
    if role in _ENDS:
        return 0 if role == "first" else size - 1
    if isinstance(role, int) and not isinstance(role, bool) and 0 <= role < size:
        return role
    raise ConfigurationError(
        f"{axis}={role!r} is no role for an axis of {size}",
        do=f"say {_ROLES} from 0 to {size - 1}.",
    )
