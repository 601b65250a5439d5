"""Drivers of the examples of groups along the axes of a mesh, torch's own and those of Megatron's parallel state."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.guard.agreement.runner import Names, drives
from tests.guard.agreement.simple import stand_in


def mesh_of(**sizes: int) -> DeviceMesh:
    """A mesh of both ranks: pipeline, data and tensor axes, of one rank where no size is given."""
    axes = {"pp": 1, "dp": 1, "tp": 1} | sizes
    return init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


def megatron(mesh: DeviceMesh, last: bool | None = None) -> None:
    """Stand for Megatron's parallel state, with the groups of a mesh.

    ``last`` is whether this rank's stage of the pipeline is the last one, where the mesh is not to tell.
    """
    at_the_end = mesh.get_local_rank("pp") == mesh["pp"].size() - 1
    state = SimpleNamespace(
        get_tensor_model_parallel_rank=lambda: mesh.get_local_rank("tp"),
        get_data_parallel_rank=lambda: mesh.get_local_rank("dp"),
        get_data_parallel_group=lambda: mesh.get_group("dp"),
        get_pipeline_model_parallel_group=lambda: mesh.get_group("pp"),
        is_pipeline_last_stage=lambda: at_the_end if last is None else last,
    )
    stand_in("megatron.core", parallel_state=state)


def _step(names: Names, mesh: DeviceMesh, state: DeviceMesh, last: bool | None = None) -> None:
    megatron(state, last)
    names().step(torch.ones(3), torch.tensor(1.0), mesh)


@drives("DL101-bad-8", mend={'mesh.get_local_rank("tp") == 0': "True"})
def sum_over_the_tensor_axis_by_one_of_it(rank: int, names: Names) -> None:
    _step(names, mesh_of(tp=2), mesh_of(pp=2), last=False)


@drives("DL101-bad-8", "barrier", mend={"parallel_state.get_tensor_model_parallel_rank() == 0": "True"})
def barrier_of_the_first_of_the_tensor_axis(rank: int, names: Names) -> None:
    """Of a stage that is not the last, as there are no ranks for two of them."""
    _step(names, mesh_of(pp=2), mesh_of(tp=2), last=False)


@drives("DL101-bad-8", "stage", mend={"parallel_state.is_pipeline_last_stage()": "True"})
def broadcast_by_the_last_stage(rank: int, names: Names) -> None:
    _step(names, mesh_of(pp=2), mesh_of(pp=2))


@drives("DL101-good-5")
def sums_over_other_axes(rank: int, names: Names) -> None:
    """Whichever of the axes has both ranks."""
    for axis in ("pp", "dp", "tp"):
        mesh = mesh_of(**{axis: 2})
        _step(names, mesh, mesh)


@drives("DL104-bad-3", mend={"files[rank::parts]": "files"})
def more_files_on_one_rank_of_the_data_axis(rank: int, names: Names) -> None:
    megatron(mesh_of(dp=2))
    names(read=torch.tensor).count([1.0, 2.0, 3.0], 2)


@drives("DL104-good-1")
def as_many_files_along_the_tensor_axis(rank: int, names: Names) -> None:
    """Of two ranks along the data axis one has more files; along the tensor axis both have the same."""
    count = names(read=torch.tensor).count
    count([1.0, 2.0, 3.0], mesh_of(dp=2), 2)
    count([1.0, 2.0, 3.0], mesh_of(tp=2), 1)
