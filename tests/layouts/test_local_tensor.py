"""torch's own simulation of ranks in one process, as a second witness of reductions and gathers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import distmetrics as dm
from distmetrics.layouts.mesh import Mesh
from distmetrics.testing import run

ROLES = ("shard", "same", "last")


@pytest.fixture
def in_one_process() -> Iterator[Any]:
    def start(world_size: int) -> LocalTensorMode:
        dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
        return LocalTensorMode(world_size)

    yield start
    dist.destroy_process_group()


def value_of(mesh: Mesh, rank: int) -> torch.Tensor:
    """Return what a rank passes: equal along axes with the same samples, nonsense elsewhere."""
    if not mesh.owns(rank):
        return torch.full((2,), torch.nan)
    place = mesh.place(rank)
    digits = [place[axis] + 1 for axis in mesh.axes("shard")]
    number = sum(digit * 10**power for power, digit in enumerate(digits))
    return torch.tensor([number, number / 8])


def gathered(x: Any, mesh: Any, axis: str) -> Any:
    """Return what the ranks along an axis have, joined.

    Not by ``all_gather``: in torch 2.13 that of LocalTensorMode gives every group what the last one
    has, and ``broadcast`` along any axis but the last another rank's values.
    """
    rows = torch.cat([x] * mesh[axis].size())
    dist.all_gather_into_tensor(rows, x, group=mesh.get_group(axis))
    return rows


def witness(sizes: dict[str, int], shape: Mesh) -> tuple[Any, Any]:
    """Return sum and rows of each rank by torch's collectives along one axis after the other."""
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    total = LocalTensor({rank: value_of(shape, rank) for rank in shape.ranks})
    rows = total.clone()[None]
    for axis in reversed(shape.axes("shard")):
        dist.all_reduce(total, group=mesh.get_group(axis))
        rows = gathered(rows, mesh, axis)
    for axis in shape.owned:
        owner = shape.roles[axis]
        total = gathered(total[None].clone(), mesh, axis)[owner].clone()
        rows = gathered(rows[None].clone(), mesh, axis)[owner].clone()
    return total, rows


def ours(comm: Any, sizes: dict[str, int], roles: dict[str, str]) -> tuple[Any, Any]:
    over = dm.layout(sizes, comm=comm, **roles)
    mine = value_of(over.mesh, comm.rank)
    return dm.all_reduce(mine, comm=over), dm.all_gather(mine, comm=over)


@pytest.mark.filterwarnings("ignore:.*all_gather_into_tensor")
def test_local_tensor_mode_gives_the_same(in_one_process: Any) -> None:
    sizes = {"tp": 2, "dp": 3}
    every = [dict(zip(sizes, each, strict=True)) for each in itertools.product(ROLES, repeat=2)]
    theirs = []
    with in_one_process(math.prod(sizes.values())):
        for roles in every:
            total, rows = witness(sizes, Mesh.of(sizes, roles))
            theirs.append((total._local_tensors, rows._local_tensors))
    for roles, (totals, rows) in zip(every, theirs, strict=True):
        for rank, result in enumerate(run(len(totals), ours, sizes, roles)):
            torch.testing.assert_close(result, (totals[rank], rows[rank]), rtol=0, atol=0)
