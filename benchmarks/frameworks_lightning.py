"""Lightning's part of the table of frameworks: what is logged with the callback, and without."""

import os
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.frameworks_cases import (
    Case,
    Outcome,
    Seen,
    by_hand,
    cases_of,
    loader_of,
    losses_of,
    model_of,
    outcomes,
    warnings_of_repeats,
)
from distmetrics import sync_and_compute
from distmetrics.data import exact

NAMES = ("count", "f1", "loss")
DATA = ("map", "iterable")


def all_cases(world_size: int) -> Iterator[Case]:
    """Yield the evaluations of one world."""
    return cases_of("Lightning", ("validate",), DATA, world_size)


def cases(part: list[Case]) -> Iterator[Outcome]:
    """Yield the outcomes of evaluations of one world."""
    return outcomes(evaluations, part, by_hand)


def evaluations(comm: Any, part: list[Case], with_distmetrics: bool) -> list[Seen]:
    """Return what one rank logs in each case."""
    from tests.integrations.modules import elastic

    if comm.world_size > 1:
        os.environ |= elastic(comm)
    return [_evaluate(comm.world_size, case, with_distmetrics) for case in part]


def _evaluate(world_size: int, case: Case, with_callback: bool) -> Seen:
    import lightning.pytorch as lightning

    from distmetrics.integrations.lightning import SyncMetrics

    loader: Any = loader_of(case)
    if with_callback and case.data != "map":
        loader = exact(loader)
    callbacks: Any = [SyncMetrics()] if with_callback else []
    module = _module(lightning, sync=not with_callback)
    with warnings_of_repeats() as warned:
        trainer = lightning.Trainer(
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
    values = {name: float(logged[name]) for name in NAMES}
    return Seen(values, module.synced, warned)


def _module(lightning: Any, *, sync: bool) -> Any:
    """Return a module that logs a count, an F1 score and a mean loss, as its users write it.

    A second count is not logged. The module asks for it at the end: the callback has it synced, and
    without the callback the module syncs it by distmetrics.
    """
    from torchmetrics import SumMetric
    from torchmetrics.classification import BinaryF1Score

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = model_of()
            self.count, self.f1 = SumMetric(), BinaryF1Score()
            self.own_count = SumMetric()
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
