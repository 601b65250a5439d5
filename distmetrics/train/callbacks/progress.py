"""Show how far a run is."""

from __future__ import annotations

import sys
from typing import Any

from distmetrics.train.callbacks.base import Callback
from distmetrics.train.context import RunContext
from distmetrics.train.module import Module
from distmetrics.train.tables import wanted


class ProgressBar(Callback):
    """A bar for each epoch on rank 0's standard error, with what is logged with ``prog_bar=True``.

    Raises:
        MissingDependencyError: rich is not installed.
    """

    def __init__(self) -> None:
        wanted(True, None, "the progress bar")
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}
        self._stage = ""

    @staticmethod
    def wanted(flag: bool | None) -> bool:
        """Return what ``enable_progress_bar`` means: None is yes where someone can see it."""
        return wanted(flag, sys.stderr, "the progress bar")

    def setup(self, trainer: RunContext, module: Module, stage: str) -> None:
        """Put up the display."""
        if not trainer.is_global_zero:
            return
        from rich import progress
        from rich.console import Console

        self._stage = "validation" if stage in ("fit", "validate") else stage
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[values]}"),
            console=Console(stderr=True),
        )
        self._progress.start()

    def teardown(self, trainer: RunContext, module: Module, stage: str) -> None:
        """Take it down."""
        if self._progress is not None:
            self._progress.stop()
        self._progress, self._tasks = None, {}

    def on_train_epoch_start(self, trainer: RunContext, module: Module) -> None:
        """Start a bar."""
        self._begin("train", f"epoch {trainer.current_epoch}", trainer)

    def on_train_batch_end(
        self, trainer: RunContext, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar on."""
        self._advance("train", trainer)

    def on_validation_epoch_start(self, trainer: RunContext, module: Module) -> None:
        """Start a bar; within an epoch it takes the place of the one before."""
        if trainer.values.within_epochs and self._stage in self._tasks:
            self._progress.remove_task(self._tasks[self._stage])
        self._begin(self._stage, self._stage, trainer)

    def on_validation_batch_end(
        self,
        trainer: RunContext,
        module: Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Move the bar on."""
        self._advance(self._stage, trainer)

    on_test_epoch_start = on_predict_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def _begin(self, stage: str, title: str, trainer: RunContext) -> None:
        if self._progress is not None:
            total = trainer.num_batches
            self._tasks[stage] = self._progress.add_task(title, total=total, values="")

    def _advance(self, stage: str, trainer: RunContext) -> None:
        if stage in self._tasks:
            shown = set() if trainer.log is None else trainer.log.prog_bar
            values = trainer.callback_metrics.items()
            parts = [f"{name} {float(value):.4g}" for name, value in values if name in shown]
            self._progress.update(self._tasks[stage], advance=1, values="  ".join(parts))
