"""What meshes mean whose axes have the names that everybody gives them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from distmetrics.errors import ConfigurationError, InputTypeError
from distmetrics.layouts.mesh import Mesh, Role

# Of torchtitan, Accelerate, Megatron and FSDP. Ranks of a context-parallel group hold other tokens
# of a sequence, those of an expert-parallel group other samples.
_ROLES: dict[str, Role] = {
    "dp": "shard",
    "dp_replicate": "shard",
    "dp_shard": "shard",
    "fsdp": "shard",
    "replicate": "shard",
    "shard": "shard",
    "ep": "shard",
    "cp": "shard",
    "sp": "shard",
    "tp": "same",
    "pp": "last",
}
_MEGATRON = "megatron.core.parallel_state"
# From the slowest to the fastest, as Megatron numbers ranks unless it is told otherwise.
_MEGATRON_AXES = {
    "pp": "pipeline_model_parallel",
    "dp": "data_parallel",
    "cp": "context_parallel",
    "tp": "tensor_model_parallel",
}


def known(source: Any, rank: int) -> tuple[Any, dict[str, Role]]:
    """Return the mesh that a job has, and what its axes mean by their names.

    Args:
        source: an ``Accelerator``, a ``DeviceMesh``, sizes by name, or "megatron".
        rank: this rank.

    Raises:
        ConfigurationError: an axis has no name that is known, or there is no mesh.
    """
    mesh: Any = source
    if isinstance(source, str):
        mesh = _of_megatron(source, rank)
    elif hasattr(source, "torch_device_mesh"):
        mesh = source.torch_device_mesh
        if mesh is None:
            raise ConfigurationError(
                "this Accelerator has no mesh",
                do="pass parallelism_config= to it; without one all ranks hold other samples, and "
                "no layout is needed.",
            )
    axes = mesh if isinstance(mesh, Mapping) else getattr(mesh, "mesh_dim_names", None)
    if not axes:
        raise InputTypeError(f"a {type(source).__name__} has no mesh whose axes have names")
    return mesh, usual_roles(axes)


def usual_roles(axes: Iterable[str]) -> dict[str, Role]:
    """Return the roles of those axes whose names are known."""
    return {axis: _ROLES[axis] for axis in axes if axis in _ROLES}


def sizes_and_ranks(mesh: Any) -> tuple[dict[str, int], list[int]]:
    """Return a mesh's sizes by axis, and its ranks where it knows them.

    Raises:
        ConfigurationError: they do not ascend.
        InputTypeError: its axes have no names.
    """
    if isinstance(mesh, Mapping):
        return dict(mesh), []
    names = getattr(mesh, "mesh_dim_names", None)
    ranks = getattr(mesh, "mesh", None)
    if not names or ranks is None:
        raise InputTypeError(
            f"a {type(mesh).__name__} is no mesh whose axes have names",
            do='pass sizes by name, {"dp": 4, "tp": 2}, or a DeviceMesh made with mesh_dim_names=.',
        )
    members = ranks.flatten().tolist()
    if members != sorted(members):
        raise ConfigurationError(
            f"the ranks of this DeviceMesh do not ascend: {members}",
            do="make it by init_device_mesh.",
        )
    return dict(zip(names, ranks.shape, strict=True)), members


def _of_megatron(name: str, rank: int) -> dict[str, int]:
    state = sys.modules.get(_MEGATRON)
    if name != "megatron" or state is None:
        loaded = "" if name != "megatron" else ", and megatron.core is not loaded"
        raise ConfigurationError(f'a layout is read from "megatron"{loaded}; got {name!r}')
    sizes, here = {}, {}
    for axis, words in _MEGATRON_AXES.items():
        sizes[axis] = int(getattr(state, f"get_{words}_world_size")())
        here[axis] = int(getattr(state, f"get_{words}_rank")())
    place = Mesh(sizes, {}).place(rank)
    if place != here:
        raise ConfigurationError(
            f"Megatron numbers rank {rank} in another order than tp-cp-dp-pp: it is {here}",
            do="pass the sizes in your order: layout({...}, ...), the slowest axis first.",
        )
    return sizes
