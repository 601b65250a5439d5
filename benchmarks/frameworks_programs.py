"""The programs of the frameworks benchmark: what a rank runs, with distmetrics and without.

Imported by every process; a framework only where it is run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torchmetrics import SumMetric
from torchmetrics.classification import BinaryF1Score

from benchmarks.frameworks_cases import (
    Case,
    Metrics,
    Outcome,
    Seen,
    Values,
    by_hand,
    cases_of,
    loader_of,
    losses_of,
    model_of,
    numbers,
    outcomes,
    warnings_of_repeats,
)
from distmetrics import sync_and_compute
from distmetrics.data import exact
from tests.integrations import hf
from tests.integrations.modules import elastic


def evaluated(name: str, world_size: int, lengths: Iterable[str]) -> Iterator[Outcome]:
    """Yield the outcomes of all evaluations of a framework in one world."""
    framework, evaluations, programs, data, single = FRAMEWORKS[name]
    chosen = {*lengths}
    every = cases_of(framework, programs, data, world_size)
    cases = [case for case in every if case.length in chosen]
    if cases:
        yield from outcomes(evaluations, cases, single)


def _join(comm: Any) -> None:
    if comm.world_size > 1:
        os.environ |= elastic(comm)


# -- Accelerate: metrics that are updated with each rank's batches and synced, or with what
# -- ``gather_for_metrics`` returns


def accelerate(comm: Any, cases: list[Case], with_distmetrics: bool) -> list[Seen]:
    """Return what one rank gets in each case."""
    from accelerate import Accelerator

    _join(comm)
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(model_of()).eval()
    return [_accelerate(accelerator, model, case, with_distmetrics) for case in cases]


def _accelerate(accelerator: Any, model: Any, case: Case, with_distmetrics: bool) -> Seen:
    from distmetrics.integrations.accelerate import prepare

    plain = loader_of(case)
    gathers = case.program == "gather_for_metrics"  # every rank has all rows then
    metrics = Metrics(sync_on_compute=False) if gathers else Metrics()
    with warnings_of_repeats() as warned, torch.no_grad():
        loader = prepare(accelerator, plain) if with_distmetrics else accelerator.prepare(plain)
        for x, y in loader:
            scores = model(x).squeeze(1)
            rows = scores, y, losses_of(scores, y)
            metrics.add(*(accelerator.gather_for_metrics(rows) if gathers else rows))
        values = numbers(metrics.compute() if gathers else sync_and_compute(metrics))
    return Seen(values, None if gathers else int(values["count"]), warned)


# -- Fabric: ``setup_dataloaders``, of distmetrics and its own


def fabric(comm: Any, cases: list[Case], with_distmetrics: bool) -> list[Seen]:
    """Return what one rank gets in each case."""
    from lightning.fabric import Fabric

    _join(comm)
    strategy = "ddp" if comm.world_size > 1 else "auto"
    with warnings_of_repeats():
        runner = Fabric(strategy=strategy, devices=comm.world_size, accelerator="cpu")
        runner.launch()
        model = runner.setup(model_of()).eval()
    return [_fabric(runner, model, case, with_distmetrics) for case in cases]


def _fabric(runner: Any, model: Any, case: Case, with_distmetrics: bool) -> Seen:
    from distmetrics.integrations.fabric import setup_dataloaders

    plain, metrics = loader_of(case), Metrics()
    with warnings_of_repeats() as warned, torch.no_grad():
        loader: Any
        if with_distmetrics:
            loader = setup_dataloaders(runner, plain)
        else:
            loader = runner.setup_dataloaders(plain)
        for x, y in loader:
            scores = model(x).squeeze(1)
            metrics.add(scores, y, losses_of(scores, y))
        values = numbers(sync_and_compute(metrics))
    return Seen(values, int(values["count"]), warned)


# -- Lightning: what is logged with the callback, and without


def lightning(comm: Any, cases: list[Case], with_distmetrics: bool) -> list[Seen]:
    """Return what one rank logs in each case."""
    _join(comm)
    return [_lightning(comm.world_size, case, with_distmetrics) for case in cases]


def _lightning(world_size: int, case: Case, with_callback: bool) -> Seen:
    import lightning.pytorch as pl

    from distmetrics.integrations.lightning import SyncMetrics

    loader: Any = loader_of(case)
    if with_callback and case.data != "map":
        loader = exact(loader)
    callbacks: Any = [SyncMetrics()] if with_callback else []
    module = _module(pl, sync=not with_callback)
    with warnings_of_repeats() as warned:
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=world_size,
            strategy="ddp" if world_size > 1 else "auto",
            callbacks=callbacks,
            default_root_dir=tempfile.gettempdir(),
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        (logged,) = trainer.validate(module, loader, verbose=False)
    values = {name: float(logged[name]) for name in ("count", "f1", "loss")}
    return Seen(values, module.synced, warned)


def _module(pl: Any, *, sync: bool) -> Any:
    """Return a module that logs a count, an F1 score and a mean loss, as its users write it.

    A second count is not logged. The module asks for it at the end: the callback has it synced, and
    without the callback the module syncs it by distmetrics.
    """

    class Model(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = model_of()
            self.count, self.f1, self.own_count = SumMetric(), BinaryF1Score(), SumMetric()
            self.synced = 0

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            x, y = batch
            scores = self.layer(x).squeeze(1)
            self.count.update(len(y))
            self.own_count.update(len(y))
            # torchmetrics guesses from each batch whether it holds logits or probabilities
            self.f1.update(scores.sigmoid(), y)
            self.log("loss", losses_of(scores, y).mean(), sync_dist=True)
            self.log("count", self.count)
            self.log("f1", self.f1)

        def on_validation_epoch_end(self) -> None:
            count = self.own_count
            self.synced = int(sync_and_compute(count) if sync else count.compute())

    return Model()


# -- Hugging Face: ``trainer.evaluate()`` attached, and alone. All models but classifiers and
# -- regression have ragged rows and masked labels


def hugging_face(comm: Any, cases: list[Case], with_distmetrics: bool) -> list[Seen]:
    """Return what one rank logs in each case."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    hf.join(comm)
    return [_hugging_face(case, with_distmetrics) for case in cases]


def _rows(case: Case) -> list[dict[str, Any]]:
    """Return the samples; of one, not the one whose labels are all masked."""
    return hf.samples(case.program, case.samples + 1)[1:]


def _single(case: Case) -> Values:
    return hf.by_hand(case.program, _rows(case))


def _hugging_face(case: Case, with_metrics: bool) -> Seen:
    from transformers import PrinterCallback

    from distmetrics.integrations.transformers import attach

    kind = case.program
    rows: Any = _rows(case) if case.data == "map" else hf.Stream(_rows(case))
    # without it Hugging Face alone fails where batches without a length are ragged
    options: dict[str, Any] = {"accelerator_config": {"dispatch_batches": False}}
    if not with_metrics and kind != "regression":
        options["compute_metrics"] = hf.compute_metrics(kind)
    trainer = hf.trainer_of(kind, rows, batch_size=case.batch_size, **options)
    trainer.remove_callback(PrinterCallback)
    if with_metrics and kind == "regression":
        attach(trainer)
    elif with_metrics:
        attach(trainer, hf.counters(), update=hf.update(kind))
    with warnings_of_repeats() as warned:
        logged = trainer.evaluate()
        loader = trainer.get_eval_dataloader()
        count = SumMetric()  # of a loop of the user's own over the trainer's loader
        for batch in exact(loader) if with_metrics else loader:
            count.update(len(batch["labels"]))
        synced = int(sync_and_compute(count))
    found = ((name, logged.get(f"eval_{name}")) for name in ("loss", "right", "seen"))
    values = {name: value for name, value in found if value is not None}
    return Seen(values, synced, warned)


Evaluations = Callable[[Any, list[Case], bool], list[Seen]]
Part = tuple[str, Evaluations, tuple[str, ...], tuple[str, ...], Callable[[Case], Values]]
_ALL, _TWO = ("map", "iterable", "sized"), ("map", "iterable")
# Name on the command line → in tables, what a rank runs, programs, data, values of one process.
FRAMEWORKS: dict[str, Part] = {
    "accelerate": ("Accelerate", accelerate, ("update", "gather_for_metrics"), _ALL, by_hand),
    "fabric": ("Fabric", fabric, ("update",), _ALL, by_hand),
    "lightning": ("Lightning", lightning, ("validate",), _TWO, by_hand),
    "hf": ("Hugging Face", hugging_face, tuple(hf.KINDS), _TWO, _single),
}
