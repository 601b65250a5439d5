"""Frameworks over a layout: each sample once, where ranks of a tensor-parallel group have the same ones.

Accelerate's ``ParallelismConfig`` and Lightning's ``ModelParallelStrategy`` need GPUs: here the mesh is of our own.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchmetrics import SumMetric

import distmetrics as dm
from distmetrics.testing import run
from tests.integrations.modules import elastic

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(240)]
PLANE = {"dp": 2, "tp": 2}


def with_accelerate(comm: Any) -> Any:
    from distmetrics.integrations.accelerate import prepare
    from tests.integrations.test_accelerate import accelerators

    accelerator = accelerators(comm)
    ranks = dm.layout.of(PLANE, comm=comm)
    metric, gathered = SumMetric(), []
    for batch in prepare(accelerator, DataLoader(range(9), batch_size=2), comm=ranks):
        metric.update(batch)
        gathered += accelerator.gather_for_metrics(batch).tolist()
    return float(dm.sync_and_compute(metric, comm=ranks)), gathered


def test_accelerate() -> None:
    pytest.importorskip("accelerate")
    for total, gathered in run(4, with_accelerate, backend="gloo"):
        assert total == 36
        assert gathered == [*range(9)]


def with_fabric(comm: Any) -> Any:
    from lightning.fabric import Fabric

    from distmetrics.integrations.fabric import setup_dataloaders

    os.environ |= elastic(comm)
    fabric = Fabric(strategy="ddp", devices=4, accelerator="cpu")
    fabric.launch()
    metric = SumMetric()
    with dm.use(dm.layout.of(PLANE, comm=comm)) as ranks:
        for batch in setup_dataloaders(fabric, DataLoader(range(9), batch_size=2)):
            metric.update(batch)
        return ranks.rank, float(dm.sync_and_compute(metric))


def test_fabric() -> None:
    pytest.importorskip("lightning.fabric")
    results = run(4, with_fabric, backend="gloo")
    assert results == [(0, 36), (0, 36), (1, 36), (1, 36)]


def with_lightning(comm: Any, layout: Any) -> Any:
    import lightning.pytorch

    from distmetrics.integrations.lightning import SyncMetrics
    from tests.integrations.exact_evaluation import dataset, make, trainer_of

    trainer = trainer_of(comm, lightning.pytorch, [SyncMetrics(layout=layout)])
    loader = DataLoader(dataset(13), batch_size=2)
    model = make(lightning.pytorch)
    (logged,) = trainer.validate(model, loader, verbose=False)
    return logged, model.steps


def test_lightning() -> None:
    """Sums count no copies, and neither do metrics; a step's value is that of the shards' batches."""
    pytest.importorskip("lightning.pytorch")
    (alone, _) = with_lightning(dm.SingleCommunicator(), None)
    results = run(4, with_lightning, PLANE, backend="gloo")
    assert [steps for _, steps in results] == [results[0][1]] * 4
    for logged, _ in results:
        assert logged.pop("ranks") == 2
        logged.pop("twice_step", None)
        assert logged == pytest.approx({name: alone[name] for name in logged}, rel=1e-5)


def test_lightning_takes_its_steps_on_every_rank() -> None:
    pytest.importorskip("lightning.pytorch")
    from distmetrics.integrations.lightning import SyncMetrics

    def work(comm: Any) -> None:
        callback = SyncMetrics(layout={"dp": 2, "pp": 2})
        with pytest.raises(dm.ConfigurationError, match="along the axis pp only one coordinate has values"):
            callback.setup(None, None, "validate")

    run(4, work)


def with_hugging_face(comm: Any) -> Any:
    from distmetrics.integrations.transformers import attach
    from tests.integrations import hf

    hf.join(comm)
    rows = hf.samples("causal", 9)
    trainer = hf.trainer_of("causal", rows, batch_size=2)
    attach(trainer, hf.counters(), update=hf.update("causal"))
    if comm.world_size == 1:
        return trainer.evaluate()
    with dm.use(dm.layout.of(PLANE, comm=comm)):
        return trainer.evaluate()


def test_hugging_face() -> None:
    pytest.importorskip("transformers")
    (single,) = run(1, with_hugging_face, backend="gloo")
    for values in run(4, with_hugging_face, backend="gloo"):
        for name in ("eval_loss", "eval_right", "eval_seen"):
            assert values[name] == pytest.approx(single[name], rel=1e-5), name
