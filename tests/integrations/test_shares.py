"""Streams that each rank has cut for itself: an error on every rank, and read whole where that is said."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import SumMetric

import distmetrics
import distmetrics.train as dt
from distmetrics import Runner
from distmetrics.data import exact
from distmetrics.errors import InputError
from distmetrics.testing import run
from tests.integrations import hf
from tests.integrations.modules import elastic, trainer_of
from tests.run.threads import Threads

N = 23


class Cut(IterableDataset[Any]):
    """What this rank has left of the numbers, or of rows."""

    def __init__(self, comm: Any, items: Any = None) -> None:
        self.items = [torch.tensor(float(n)) for n in range(N)] if items is None else items
        self.items = self.items[comm.rank :: comm.world_size]

    def __iter__(self) -> Any:
        return iter(self.items)


def read(loader: Any) -> int:
    return sum(len(batch) for batch in loader)


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match="dealt=True"):
        call()


def by_accelerate(comm: Any) -> int:
    from accelerate import Accelerator, DataLoaderConfiguration

    from distmetrics.integrations.accelerate import prepare

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    loader = DataLoader(Cut(comm), batch_size=2)
    refused(lambda: read(prepare(accelerator, loader)))
    warnings.filterwarnings("ignore", message="gather_for_metrics: the rows of the last round")
    for each, equal_batches in ((loader, True), (accelerator.prepare(loader), None)):
        rows = []
        for batch in prepare(accelerator, each, dealt=True, equal_batches=equal_batches):
            rows += accelerator.gather_for_metrics(batch).tolist()
        assert comm.rank > 0 or sorted(rows) == [*range(N)]  # rank 0 has all rows without equal batches too
    return read(prepare(accelerator, loader, dealt=True))


def by_fabric(comm: Any) -> int:
    from lightning.fabric import Fabric

    from distmetrics.integrations.fabric import setup_dataloaders

    fabric = Fabric(strategy="ddp", devices=comm.world_size, accelerator="cpu")
    fabric.launch()
    loader = DataLoader(Cut(comm), batch_size=2)
    refused(lambda: read(setup_dataloaders(fabric, loader)))
    return read(setup_dataloaders(fabric, loader, dealt=True))


def by_lightning(comm: Any) -> int:
    import lightning.pytorch

    from distmetrics.integrations.lightning import SyncMetrics

    class Counts(lightning.pytorch.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.rows = torch.nn.Linear(1, 1), SumMetric()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.rows.update(len(batch))

        def on_validation_epoch_end(self) -> None:
            self.log("rows", self.rows.compute())

    def validate(loader: Any) -> float:
        trainer = trainer_of(comm, lightning.pytorch, [SyncMetrics()])
        return float(trainer.validate(Counts(), loader, verbose=False)[0]["rows"])

    loader = DataLoader(Cut(comm), batch_size=2)
    refused(lambda: validate(exact(loader)))
    assert validate(exact(loader, dealt=True)) == N
    return len(loader.dataset.items)  # type: ignore[attr-defined]


def by_hugging_face(comm: Any) -> int:
    from distmetrics.integrations.transformers import attach

    rows = hf.samples("classifier", N)

    def evaluate(**options: Any) -> Any:
        trainer = hf.trainer_of("classifier", Cut(comm, rows), batch_size=2)
        attach(trainer, hf.counters(), update=hf.update("classifier"), **options)
        return trainer.evaluate()

    refused(evaluate)
    for equal_batches in (False, True):
        found = evaluate(dealt=True, equal_batches=equal_batches)
        wanted = hf.by_hand("classifier", rows)
        assert {name: found[f"eval_{name}"] for name in wanted} == pytest.approx(wanted, rel=1e-4)
    return len(rows[comm.rank :: comm.world_size])


HOW: dict[str, Any] = {
    "accelerate": by_accelerate,
    "lightning.fabric": by_fabric,
    "lightning.pytorch": by_lightning,
    "transformers": by_hugging_face,
}


def shares(comm: Any, how: str) -> int:
    os.environ |= elastic(comm)
    count: int = HOW[how](comm)
    return count


@pytest.mark.gloo
@pytest.mark.parametrize("how", HOW)
def test_a_stream_of_shares_is_refused_and_read_whole_where_that_is_said(how: str) -> None:
    pytest.importorskip(how)
    assert run(2, shares, how, backend="gloo") == [12, 11]


class Counts(dt.Module):
    """Counts the rows of a stream; ``said`` is what is said of it."""

    def __init__(self, said: dict[str, Any] | None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.said = said

    def val_dataloader(self) -> Any:
        loader = DataLoader(Cut(distmetrics.current()), batch_size=2)
        return loader if self.said is None else exact(loader, **self.said)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("rows", float(len(batch)), reduce_fx="sum")


@pytest.mark.gloo
def test_the_trainer_takes_what_exact_returns() -> None:
    trainer = dt.Trainer(strategy="ddp_fork", devices=2, accelerator="cpu", logger=False)
    refused(lambda: trainer.validate(Counts(None)))
    assert trainer.validate(Counts({"dealt": True}))[0]["rows"] == N


def test_the_runner_takes_what_exact_returns() -> None:
    def job(runner: Any) -> int:
        loader = DataLoader(Cut(distmetrics.current()), batch_size=2)
        refused(lambda: read(runner.setup_dataloaders(loader, train=False)))
        return read(runner.setup_dataloaders(exact(loader, dealt=True)))

    assert Runner(strategy=Threads(), devices=2).launch(job) == [12, 11]
