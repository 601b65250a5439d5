"""Flags of torchmetrics inside Lightning: sync on every step, not at all, without a cache; beside the callback."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch
from torchmetrics import MeanMetric, MetricCollection, SumMetric

from distmetrics import SingleCommunicator
from distmetrics.testing import run
from tests.integrations.modules import elastic

lightning = pytest.importorskip("lightning.pytorch")
BATCHES = ((1.0, 2.0), (3.0, 4.0))  # of each rank


def model() -> Any:
    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.each_step = SumMetric(dist_sync_on_step=True)
            self.no_cache = MeanMetric(compute_with_cache=False)
            self.local = SumMetric(sync_on_compute=False)
            self.both = MetricCollection({"both_local": SumMetric(sync_on_compute=False), "both_all": MeanMetric()})
            self.steps: list[float] = []

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            (value,) = batch
            self.steps.append(float(self.each_step(value)))
            self.no_cache(value)
            self.local(value)
            self.both(value)
            for name in ("each_step", "no_cache", "local"):
                self.log(name, getattr(self, name), on_step=False, on_epoch=True)
            self.log_dict(self.both, on_step=False, on_epoch=True)

    return Model()


def validate(comm: Any, names: list[str] | None) -> tuple[list[float], dict[str, float], list[bool]]:
    from distmetrics.integrations.lightning import SyncMetrics

    if comm.world_size > 1:
        os.environ |= elastic(comm)
    warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
    trainer = lightning.Trainer(
        strategy="ddp" if comm.world_size > 1 else "auto",
        devices=comm.world_size,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[SyncMetrics()] + ([] if names is None else [SyncMetrics(names)]),
    )
    made = model()
    (logged,) = trainer.validate(made, torch.utils.data.DataLoader(torch.tensor(BATCHES[comm.rank])), verbose=False)
    flags = [made.each_step.dist_sync_on_step, made.no_cache.compute_with_cache, made.local.sync_on_compute]
    return made.steps, {name: round(value, 4) for name, value in logged.items()}, flags


@pytest.mark.gloo
@pytest.mark.timeout(180)
def test_every_flag_means_what_it_says() -> None:
    """Steps are synced by torchmetrics where that was asked for; the end of the epoch by the callback."""
    for rank, (steps, logged, flags) in enumerate(run(2, validate, None, backend="gloo")):
        assert steps == [4.0, 6.0]  # both ranks' batches, step by step
        assert logged == {
            "each_step": 10.0, "no_cache": 2.5, "local": sum(BATCHES[rank]), "both_local": 10.0, "both_all": 2.5
        }  # fmt: skip
        assert flags == [True, False, False]


@pytest.mark.gloo
@pytest.mark.timeout(180)
def test_a_local_metric_that_is_named_is_synced() -> None:
    """Naming it is asking for it; several callbacks go together."""
    for _, logged, _ in run(2, validate, ["local"], backend="gloo"):
        assert (logged["local"], logged["no_cache"]) == (10.0, 2.5)


def test_in_one_process() -> None:
    """The same module, alone."""
    steps, logged, _ = validate(SingleCommunicator(), None)
    assert steps == [1.0, 2.0]
    assert (logged["each_step"], logged["no_cache"], logged["local"]) == (3.0, 1.5, 3.0)
