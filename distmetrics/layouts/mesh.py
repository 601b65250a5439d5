"""Axes of ranks and what they mean. Pure.

Ranks are numbered as the communicator of the whole mesh numbers them, row by row: the last axis is
the one whose neighbours have adjacent numbers.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distmetrics.errors import ConfigurationError, InputTypeError

Role = str | int
SHARD, SAME = "shard", "same"
_ROLES = '"shard" (other samples), "same" (the same samples), "first", "last" or a number'


@dataclass(frozen=True)
class Mesh:
    """Ranks along axes, each with a role: "shard", "same", or the number that alone has values."""

    sizes: dict[str, int]
    roles: Mapping[str, Role]

    @classmethod
    def of(cls, sizes: Mapping[str, int], roles: Mapping[str, Any]) -> Mesh:
        """Return a mesh whose axes and roles go together."""
        for axis in {**sizes, **roles}:
            if axis not in sizes or axis not in roles:
                shown = ", ".join(f"{axis} ({size})" for axis, size in sizes.items())
                raise ConfigurationError(
                    f"the axis {axis} has no {'role' if axis in sizes else 'ranks'}; the axes are "
                    f"{shown or 'none'}",
                    do=f"say what the ranks along each hold, {axis}= {_ROLES}: nothing is guessed.",
                )
        checked = {axis: _checked(axis, sizes[axis], role) for axis, role in roles.items()}
        return cls(dict(sizes), checked)

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(math.prod(self.sizes.values()))

    def axes(self, *roles: Role) -> list[str]:
        """Return the axes with one of some roles."""
        return [axis for axis in self.sizes if self.roles[axis] in roles]

    @functools.cached_property
    def owned(self) -> list[str]:
        """The axes along which one coordinate has the values."""
        return [axis for axis in self.sizes if isinstance(self.roles[axis], int)]

    def owns(self, rank: int) -> bool:
        """True if a rank has values: along each axis with an owner it is that one."""
        place = self.place(rank)
        return all(place[axis] == self.roles[axis] for axis in self.owned)

    @functools.cached_property
    def owners(self) -> list[int]:
        """The ranks that have values."""
        return [rank for rank in self.ranks if self.owns(rank)]

    def place(self, rank: int) -> dict[str, int]:
        """Return where a rank is along each axis."""
        place = {}
        for axis, size in reversed(self.sizes.items()):
            rank, place[axis] = divmod(rank, size)
        return dict(reversed(place.items()))

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return where a rank is along each axis, in the order of the axes; for users."""
        return tuple(self.place(rank).values())

    def along(self, rank: int, axes: Iterable[str]) -> list[int]:
        """Return the ranks that differ from one only along some axes, in order."""
        varied, here, ranks = {*axes}, self.place(rank), [0]
        for axis, size in self.sizes.items():
            span = range(size) if axis in varied else [here[axis]]
            ranks = [number * size + at for number in ranks for at in span]
        return ranks

    def varied(self, ranks: Iterable[int]) -> list[str]:
        """Return the axes along which some ranks differ."""
        places = [self.place(rank) for rank in ranks]
        return [axis for axis in self.sizes if len({place[axis] for place in places}) > 1]

    def __str__(self) -> str:
        parts = [f"{axis} {size} {self.roles[axis]}" for axis, size in self.sizes.items()]
        return ", ".join(parts)


def _checked(axis: str, size: int, role: Any) -> Role:
    """Return a role; of an owner its number."""
    number: Role = {"first": 0, "last": size - 1}.get(str(role), role)
    if number in (SHARD, SAME) or (type(number) is int and 0 <= number < size):
        return number
    raise ConfigurationError(
        f"{axis}={role!r} is no role for an axis of {size}",
        do=f"say {_ROLES} from 0 to {size - 1}.",
    )


# Of torchtitan, Accelerate, Megatron and FSDP. Ranks of a context-parallel group hold other tokens
# of a sequence, those of an expert-parallel group other samples.
_USUAL_ROLES: dict[str, Role] = {
    **dict.fromkeys(
        ["dp", "dp_replicate", "dp_shard", "fsdp", "replicate", "shard", "ep", "cp", "sp"], SHARD
    ),
    "tp": SAME,
    "pp": "last",
}


def usual_roles(axes: Iterable[str]) -> dict[str, Role]:
    """Return the roles of those axes whose names are known."""
    return {axis: _USUAL_ROLES[axis] for axis in axes if axis in _USUAL_ROLES}


# From the slowest to the fastest, as Megatron numbers ranks unless it is told otherwise.
_MEGATRON_AXES = {
    "pp": "pipeline_model_parallel",
    "dp": "data_parallel",
    "cp": "context_parallel",
    "tp": "tensor_model_parallel",
}


def sizes_and_ranks(source: Any, rank: int) -> tuple[dict[str, int], list[int]]:
    """Return the sizes by axis of what :meth:`layout.of` takes, and its ranks where it has them."""
    if source == "megatron" and "megatron.core.parallel_state" in sys.modules:
        source = _of_megatron(sys.modules["megatron.core.parallel_state"], rank)
    if isinstance(source, Mapping):
        return dict(source), []
    mesh = getattr(source, "torch_device_mesh", source)
    names = getattr(mesh, "mesh_dim_names", None)
    if not names:
        raise InputTypeError(
            f"a {type(source).__name__} is no mesh whose axes have names",
            do='pass sizes by name, {"dp": 4, "tp": 2}; a DeviceMesh made with mesh_dim_names=; an '
            'Accelerator with a parallelism_config; or "megatron" once megatron.core is loaded.',
        )
    members = mesh.mesh.flatten().tolist()
    if members != sorted(members):
        raise ConfigurationError(
            f"the ranks of this DeviceMesh do not ascend: {members}",
            do="make it by init_device_mesh.",
        )
    return dict(zip(names, mesh.mesh.shape, strict=True)), members


def _of_megatron(state: Any, rank: int) -> dict[str, int]:
    sizes, here = {}, {}
    for axis, words in _MEGATRON_AXES.items():
        sizes[axis] = int(getattr(state, f"get_{words}_world_size")())
        here[axis] = int(getattr(state, f"get_{words}_rank")())
    if Mesh(sizes, {}).place(rank) != here:
        raise ConfigurationError(
            f"Megatron numbers rank {rank} in another order than tp-cp-dp-pp: it is {here}",
            do="pass the sizes in your order: layout({...}, ...), the slowest axis first.",
        )
    return sizes
