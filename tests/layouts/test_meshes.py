"""Meshes that a job has already: DeviceMesh, Accelerate's, Megatron's."""

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
    over = dm.layout(mesh, dp="shard", tp="same")
    by_names = dm.layout.of(mesh)
    swapped = dm.layout(mesh, dp="last", tp="shard")
    line = dm.GroupCommunicator(mesh["tp"])
    metric = SumMetric(process_group=mesh["dp"])
    metric.update(float(comm.rank))
    with pytest.raises(dm.ConfigurationError, match="2 dimensions is no group"):
        dm.GroupCommunicator(mesh)
    return [
        dm.all_gather(dp, comm=over).tolist(),
        dm.all_gather(dp, comm=by_names).tolist(),
        dm.all_gather(comm.rank, comm=swapped).tolist(),
        dm.all_gather(tp, comm=line).tolist(),
        float(dm.sync_and_compute(metric)),
    ]


def of_megatron(sizes: dict[str, int], rank: int) -> Any:
    """Return what stands for Megatron's module, of a job with these sizes."""
    place = Mesh(sizes, {}).place(rank)
    words = {
        "pp": "pipeline_model_parallel",
        "dp": "data_parallel",
        "cp": "context_parallel",
        "tp": "tensor_model_parallel",
    }
    state = SimpleNamespace()
    for axis, word in words.items():
        setattr(state, f"get_{word}_world_size", lambda axis=axis: sizes.get(axis, 1))
        setattr(state, f"get_{word}_rank", lambda axis=axis: place.get(axis, 0))
    return state


def test_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"pp": 2, "dp": 3, "cp": 1, "tp": 2}
    for rank in range(12):
        monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", of_megatron(sizes, rank))
        assert sizes_and_ranks("megatron", rank) == (sizes, [])


def test_megatron_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    state = of_megatron({"tp": 2, "dp": 3}, 1)
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    with pytest.raises(dm.ConfigurationError, match="in another order"):
        sizes_and_ranks("megatron", 1)


def test_megatron_that_is_not_loaded() -> None:
    with pytest.raises(dm.InputTypeError, match=r"once megatron\.core is loaded"):
        dm.layout.of("megatron")


def test_an_accelerator_without_a_mesh() -> None:
    with pytest.raises(dm.InputTypeError, match="parallelism_config"):
        dm.layout.of(SimpleNamespace(torch_device_mesh=None))


def test_no_mesh() -> None:
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
