"""A Lightning module that logs a number in every way, over loaders of every kind; imported by every process."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from torchmetrics import MetricCollection, SumMetric
from torchmetrics.classification import BinaryAUROC, BinaryF1Score

from distmetrics import InputError, RepeatedSamplesWarning, sync_and_compute
from distmetrics.data import exact, fresh
from tests.integrations.modules import elastic

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Rows(IterableDataset[Any]):
    """Rows in a stream, the same on every rank."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


def dataset(length: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(length, 3, generator=generator)
    return TensorDataset(x, (x.sum(1) + torch.randn(length, generator=generator) > 0).long())


def make(lightning: Any) -> Any:
    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(3, 1)
            self.metrics = MetricCollection({"f1": BinaryF1Score(), "auroc": BinaryAUROC()})
            self.count = SumMetric()
            self.rows: list[int] = []
            self.steps: list[float] = []

        def step(self, batch: Any, suffix: str = "") -> torch.Tensor:
            x, y = batch
            p = self.layer(x).squeeze(1).sigmoid()
            losses = torch.nn.functional.binary_cross_entropy(p, y.float(), reduction="none")
            for name in ("mean", "sum", "max", "min"):  # of any batches the same
                value = getattr(losses, name)()
                self.log(name + suffix, value, reduce_fx=name, sync_dist=True, on_step=False, on_epoch=True)
            return losses.mean()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.step(batch, "_train") * 0

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            loss = self.step(batch)
            x, y = batch
            self.metrics.update(self.layer(x).squeeze(1).sigmoid(), y)
            self.count.update(len(y))
            self.rows.append(len(fresh(y)))
            self.log("given", loss, sync_dist=True, batch_size=2 * len(y))
            self.log("twice", loss, sync_dist=True, on_step=True, on_epoch=True)
            results = self.trainer._results
            place = "" if results.dataloader_idx is None else f".{results.dataloader_idx}"
            self.steps.append(float(results[f"{self._current_fx_name}.twice{place}"]._forward_cache))

        def on_validation_epoch_end(self) -> None:
            self.log_dict(self.metrics.compute())
            self.log("count", self.count.compute())
            self.log("ranks", 1.0, reduce_fx="sum", sync_dist=True)
            self.metrics.reset()
            self.count.reset()

        test_step = validation_step
        on_test_epoch_end = on_validation_epoch_end

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Model()


class Talks(torch.nn.Linear):
    """A layer whose forward pass needs all ranks, as a sharded one does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(torch.ones(1))
        return super().forward(x)


def trainer_of(comm: Any, lightning: Any, callbacks: list[Any], **options: Any) -> Any:
    if comm.world_size > 1:
        os.environ |= elastic(comm)
    warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
    options = {"strategy": "ddp" if comm.world_size > 1 else "auto", "num_sanity_val_steps": 0} | options
    return lightning.Trainer(devices=comm.world_size, accelerator="cpu", callbacks=callbacks, **QUIET, **options)


class Jobs:
    """Evaluations of one rank; each returns the numbers that were logged, and what steps saw."""

    def __init__(self, comm: Any, package: str, ours: bool) -> None:
        self.lightning = importlib.import_module(package)
        module = importlib.import_module("distmetrics.integrations.lightning")
        self.comm = comm
        self.callbacks: list[Any] = [module.SyncMetrics()] if ours else []

    def trainer(self, **options: Any) -> Any:
        return trainer_of(self.comm, self.lightning, self.callbacks, **options)

    def evaluate(self, loaders: Any, fn: str = "validate", model: Any = None, **options: Any) -> dict[str, Any]:
        """Validate or test a fresh module."""
        model = make(self.lightning) if model is None else model
        trainer = self.trainer(**options)
        logged: dict[str, float] = {}
        for values in getattr(trainer, fn)(model, loaders, verbose=False):
            logged |= values
        assert "_prepare_dataloader" not in vars(trainer._data_connector)  # it is put back
        assert "update_metrics" not in vars(trainer.validate_loop._results)
        return {"logged": logged, "rows": model.rows, "steps": model.steps}

    def fit(self, length: int, **options: Any) -> dict[str, Any]:
        """Train, with a validation before it and in each epoch."""
        model = make(self.lightning)
        trainer = self.trainer(num_sanity_val_steps=2, max_epochs=2, **options)
        loader = DataLoader(dataset(length), batch_size=1, num_workers=1, persistent_workers=True)
        trainer.fit(model, DataLoader(dataset(12), batch_size=2), loader)  # 2 and 3 ranks train on 12 samples alike
        assert "update_metrics" not in vars(trainer.fit_loop.epoch_loop._results)
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        return {"logged": logged, "rows": model.rows, "steps": model.steps}

    def error_of(self, loader: Any, **options: Any) -> str:
        """Return what is said of an evaluation that can't be exact."""
        try:
            self.evaluate(loader, **options)
        except InputError as error:
            return str(error)
        return ""


def by_length(comm: Any, package: str, ours: bool = True) -> dict[str, Any]:
    """Evaluations of data that divides, that does not, and that is too little for every rank."""
    jobs = Jobs(comm, package, ours)
    results = {}
    for length, size in ((12, 2), (13, 2), (13, 1), (2, 4), (1, 4)):
        results[f"{length} in batches of {size}"] = jobs.evaluate(DataLoader(dataset(length), batch_size=size))
    return results


def everything(comm: Any) -> dict[str, Any]:
    """Every kind of evaluation that must give the numbers of one process."""
    jobs = Jobs(comm, "lightning.pytorch", ours=True)
    talks = make(jobs.lightning)
    talks.layer = Talks(3, 1)
    loader = DataLoader(dataset(13), batch_size=1)
    return by_length(comm, "lightning.pytorch") | {
        "a forward pass that talks": jobs.evaluate(loader, model=talks),
        "test": jobs.evaluate(loader, "test"),
        "several": jobs.evaluate([loader, DataLoader(dataset(5), batch_size=2)]),
        "a DistributedSampler": jobs.evaluate(distributed(comm)),
        "Lightning's own": jobs.evaluate(unrepeated(comm)),
        "a stream": jobs.evaluate(exact(DataLoader(Rows(dataset(13)), batch_size=1))),
        "fit": jobs.fit(13),
        "fit and reload": jobs.fit(5, reload_dataloaders_every_n_epochs=1),
    }


def distributed(comm: Any) -> DataLoader[Any]:
    """A loader that its user has dealt out, with repeats."""
    sampler: Any = DistributedSampler(dataset(13), comm.world_size, comm.rank, shuffle=False)
    return DataLoader(dataset(13), batch_size=2, sampler=sampler)


def unrepeated(comm: Any) -> DataLoader[Any]:
    """A loader that is dealt out as Lightning does it for prediction: no repeats, unequal numbers of batches."""
    from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler

    sampler: Any = UnrepeatedDistributedSampler(
        dataset(13), num_replicas=comm.world_size, rank=comm.rank, shuffle=False
    )
    return DataLoader(dataset(13), batch_size=1, sampler=sampler)


def odd_ones(comm: Any) -> dict[str, Any]:
    """What is limited, left alone, or refused."""
    from lightning.pytorch.utilities import CombinedLoader

    from distmetrics.integrations.lightning import SyncMetrics

    jobs = Jobs(comm, "lightning.pytorch", ours=True)
    loader, single = DataLoader(dataset(13), batch_size=2), DataLoader(dataset(1))
    part = DataLoader(dataset(4 * (comm.rank == 0)), batch_size=2)
    pairs = CombinedLoader([DataLoader(dataset(13), batch_size=1)] * 2, "min_size")
    return {
        "limited": jobs.evaluate(loader, limit_val_batches=2)["rows"],
        "left alone": jobs.evaluate(loader, use_distributed_sampler=False)["rows"],
        "empty": jobs.error_of(part, use_distributed_sampler=False),
        "pairs": jobs.error_of(pairs),
        "after": jobs.evaluate(single)["logged"]["count"],
        "warned": [naive(comm, length, SyncMetrics) for length in (12, 13)],
    }


def naive(comm: Any, length: int, callback: Any) -> list[list[str]]:
    """Return the warnings of a module that syncs a metric itself, without the callback, and of one with it."""
    import lightning.pytorch as lightning

    class Model(lightning.LightningModule):
        def __init__(self, sync: Any) -> None:
            super().__init__()
            self.count, self.sync = SumMetric(), sync

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.count.update(len(batch[0]))

        def on_validation_epoch_end(self) -> None:
            self.sync(self.count)

    texts = []
    for sync, callbacks in ((sync_and_compute, []), (SumMetric.compute, [callback()])):
        with warnings.catch_warnings(record=True) as seen:
            trainer = trainer_of(comm, lightning, callbacks)
            warnings.simplefilter("always", RepeatedSamplesWarning)
            trainer.validate(Model(sync), DataLoader(dataset(length), batch_size=2), verbose=False)
        texts.append([str(each.message) for each in seen if each.category is RepeatedSamplesWarning])
    return texts
