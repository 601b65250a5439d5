"""Evaluation inside the real Lightning: every sample counts once, in metrics and in logged numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics
from torch.utils.data import DataLoader

from distmetrics import SingleCommunicator
from distmetrics.data import fresh
from distmetrics.testing import run
from tests.integrations.exact_evaluation import dataset, make, trainer_of

lightning = pytest.importorskip("lightning.pytorch")
from distmetrics.integrations.lightning import SyncMetrics, counted  # noqa: E402  (needs lightning)


class Talks(torch.nn.Linear):
    """A layer whose forward pass needs all ranks, as a sharded one does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(torch.ones(1))
        return super().forward(x)


def evaluate(comm: Any, loaders: Any, model: Any = None) -> dict[str, Any]:
    """Validate a fresh module; return what is logged, and how many fresh rows each step had."""
    model = make(lightning) if model is None else model
    trainer = trainer_of(comm, lightning, [SyncMetrics()])
    logged: dict[str, float] = {}
    for values in trainer.validate(model, loaders, verbose=False):
        logged |= values
    assert "_prepare_dataloader" not in vars(trainer._data_connector)  # it is put back
    assert "update_metrics" not in vars(trainer.validate_loop._results)
    return {"logged": logged, "rows": model.rows}


def fit(comm: Any, length: int, **options: Any) -> dict[str, Any]:
    """Train, with a validation before it and in each epoch."""
    model = make(lightning)
    options |= {"num_sanity_val_steps": 2, "max_epochs": 2}
    trainer = trainer_of(comm, lightning, [SyncMetrics()], **options)
    loader = DataLoader(dataset(length), batch_size=1, num_workers=1, persistent_workers=True)
    trainer.fit(model, DataLoader(dataset(12), batch_size=2), loader)  # 2 and 3 ranks train on 12 samples alike
    assert "update_metrics" not in vars(trainer.fit_loop.epoch_loop._results)
    return {"logged": {name: float(value) for name, value in trainer.callback_metrics.items()}, "rows": model.rows}


def unrepeated(comm: Any) -> DataLoader[Any]:
    """A loader that is dealt out as Lightning does it for prediction: no repeats, unequal numbers of batches."""
    from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler

    where = {"num_replicas": comm.world_size, "rank": comm.rank}
    sampler: Any = UnrepeatedDistributedSampler(dataset(13), shuffle=False, **where)
    return DataLoader(dataset(13), batch_size=1, sampler=sampler)


def everything(comm: Any) -> dict[str, Any]:
    """Every kind of evaluation that must give the numbers of one process."""
    talks = make(lightning)
    talks.layer = Talks(3, 1)
    loader = DataLoader(dataset(13), batch_size=1)
    return {
        "13 in batches of 2": evaluate(comm, DataLoader(dataset(13), batch_size=2)),
        "1 in batches of 4": evaluate(comm, DataLoader(dataset(1), batch_size=4)),
        "a forward pass that talks": evaluate(comm, loader, talks),
        "several": evaluate(comm, [loader, DataLoader(dataset(5), batch_size=2)]),
        "Lightning's own": evaluate(comm, unrepeated(comm)),
        "fit": fit(comm, 13),
        "fit and reload": fit(comm, 5, reload_dataloaders_every_n_epochs=1),
    }


@pytest.mark.gloo
@pytest.mark.timeout(400)
@pytest.mark.parametrize("world_size", [2, 3])
def test_numbers_are_those_of_one_process(world_size: int) -> None:
    """Means, sums, extremes and metrics; a rank without samples takes part with a batch that no number sees."""
    alone = everything(SingleCommunicator())
    ranks = run(world_size, everything, backend="gloo")
    for rank in ranks:
        for name, result in rank.items():
            expected, logged = dict(alone[name]["logged"]), dict(result["logged"])
            assert logged.pop("ranks") == world_size * expected.pop("ranks"), name
            for key in [key for key in expected if "_step" in key]:  # in one process, of other samples
                del expected[key], logged[key]
            assert logged == pytest.approx(expected, rel=1e-5), name
    assert [rank["1 in batches of 4"]["rows"] for rank in ranks] == [[1], [0], [0]][:world_size]


class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """Adds up; what its metric is between the steps is in ``seen``."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torchmetrics.MeanMetric()
        names = {"local": torchmetrics.SumMetric(sync_on_compute=False), "all": torchmetrics.MeanMetric()}
        self.both = torchmetrics.MetricCollection(names)
        self.seen: list[bool] = []

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.seen.append(self.mean._is_synced)
        self.mean.update(batch)
        self.both.update(batch)

    def on_validation_batch_end(self, *_: Any) -> None:
        self.seen.append(self.mean._is_synced)

    def on_validation_epoch_end(self) -> None:
        self.seen.append(self.mean._is_synced and self.both["local"]._is_synced)
        self.log("mean", self.mean.compute())


def test_every_loader_ends_with_a_sync_and_no_step_sees_it() -> None:
    """In a collection the first metric that wants a sync decides for all."""
    module = Model()
    trainer = trainer_of(SingleCommunicator(), lightning, [SyncMetrics()])
    trainer.validate(module, [DataLoader([torch.tensor(value)]) for value in (1.0, 2.0)], verbose=False)
    assert module.seen == [False] * 4 + [True]
    assert not module.mean._is_synced
    assert trainer.callback_metrics["mean"] == 1.5


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_that_fills_up_leaves_metrics_as_they_were(fails: bool) -> None:
    """Also if its step fails, states that are changed in place, and what metrics of a collection share."""
    module = torch.nn.Module()
    module.metrics = torchmetrics.MetricCollection({"a": torchmetrics.SumMetric(), "b": torchmetrics.SumMetric()})
    module.kept = torchmetrics.CatMetric()

    def step(filler: bool) -> None:
        with counted(module, filler=filler):
            module.metrics.update(torch.tensor(2.0))
            module.kept.update(torch.tensor(2.0))
            assert len(fresh(torch.ones(3))) == (0 if filler else 3)
            if fails and filler:
                raise ValueError("of the user's")

    for filler in (True, False, True):
        if fails and filler:
            with pytest.raises(ValueError, match="of the user's"):
                step(filler)
        else:
            step(filler)
    assert {name: float(value) for name, value in module.metrics.compute().items()} == {"a": 2.0, "b": 2.0}
    assert module.kept.compute().tolist() == 2.0
    assert [metric._update_count for metric in (*module.metrics.values(), module.kept)] == [1, 1, 1]
