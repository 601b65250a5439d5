"""Meshes that a job has already, and what is none."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torchmetrics import SumMetric

import distmetrics as dm
from distmetrics.layouts.mesh import Mesh, sizes_and_ranks
from distmetrics.testing import run


def on_a_device_mesh(comm: Any) -> list[Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh.get_coordinate() or ()
    metric = SumMetric(process_group=mesh["dp"])
    metric.update(float(comm.rank))
    with pytest.raises(dm.ConfigurationError, match="2 dimensions is no group"):
        dm.GroupCommunicator(mesh)
    return [
        dm.all_gather(dp, comm=dm.layout(mesh, dp="shard", tp="same")).tolist(),
        dm.all_gather(comm.rank, comm=dm.layout(mesh, dp="last", tp="shard")).tolist(),
        dm.all_gather(tp, comm=dm.GroupCommunicator(mesh["tp"])).tolist(),
        float(dm.sync_and_compute(metric)),
    ]


def of_megatron(sizes: dict[str, int], rank: int) -> Any:
    """Return what stands for Megatron's module, of a job with these sizes."""
    place = Mesh(sizes, {}).place(rank)
    words = {"pp": "pipeline_model", "dp": "data", "cp": "context", "tp": "tensor_model"}
    state = SimpleNamespace()
    for axis, word in words.items():
        setattr(state, f"get_{word}_parallel_world_size", lambda axis=axis: sizes.get(axis, 1))
        setattr(state, f"get_{word}_parallel_rank", lambda axis=axis: place.get(axis, 0))
    return state


def test_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dm.InputTypeError, match=r"once megatron\.core is loaded"):
        dm.layout.of("megatron")
    sizes = {"pp": 2, "dp": 3, "cp": 1, "tp": 2}
    for rank in range(12):
        monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", of_megatron(sizes, rank))
        assert sizes_and_ranks("megatron", rank) == (sizes, [])
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", of_megatron({"tp": 2, "dp": 3}, 1))
    with pytest.raises(dm.ConfigurationError, match="in another order"):
        sizes_and_ranks("megatron", 1)


def test_what_is_no_mesh() -> None:
    with pytest.raises(dm.InputTypeError, match="parallelism_config"):
        dm.layout.of(SimpleNamespace(torch_device_mesh=None))
    with pytest.raises(dm.InputTypeError, match="a Tensor is no mesh"):
        dm.layout(torch.ones(2), dp="shard")


def test_lightning_takes_its_steps_on_every_rank() -> None:
    pytest.importorskip("lightning.pytorch")
    from distmetrics.integrations.lightning import SyncMetrics

    def work(comm: Any) -> None:
        callback = SyncMetrics(layout={"dp": 2, "pp": 2})
        with pytest.raises(dm.ConfigurationError, match="along the axis pp only one coordinate has values"):
            callback.setup(None, None, "validate")

    run(4, work)
