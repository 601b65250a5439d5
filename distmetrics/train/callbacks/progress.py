"""Show how far a run is."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from distmetrics.errors import MissingDependencyError
from distmetrics.train.callbacks.base import Callback

if TYPE_CHECKING:
    from distmetrics.train.module import Module
    from distmetrics.train.trainer import Trainer


class ProgressBar(Callback):
    """A bar for each epoch on rank 0's standard error, with the values logged with
    ``prog_bar=True``.

    Raises:
        MissingDependencyError: rich is not installed.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("rich") is None:
            raise MissingDependencyError.of("rich", "train", "the progress bar")
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}

    @staticmethod
    def wanted(flag: bool | None) -> bool:
        """Resolve the trainer's ``enable_progress_bar``: None is yes where rich is installed and
        someone looks.
        """
        if flag is not None:
            return flag
        return (
            sys.stderr is not None
            and sys.stderr.isatty()
            and importlib.util.find_spec("rich") is not None
        )

    def setup(self, trainer: Trainer, module: Module, stage: str) -> None:
        """Put up the display."""
        if trainer.is_global_zero:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[values]}"),
                console=Console(stderr=True),
            )
            self._progress.start()

    def teardown(self, trainer: Trainer, module: Module, stage: str) -> None:
        """Take it down."""
        if self._progress is not None:
            self._progress.stop()
        self._progress, self._tasks = None, {}

    def on_train_epoch_start(self, trainer: Trainer, module: Module) -> None:
        """Start a bar."""
        self._begin("train", f"epoch {trainer.current_epoch}", trainer)

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move it on."""
        self._advance("train", trainer)

    def on_validation_epoch_start(self, trainer: Trainer, module: Module) -> None:
        """Start a bar."""
        self._begin("validation", "validation", trainer)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        module: Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Move it on."""
        self._advance("validation", trainer)

    def on_test_epoch_start(self, trainer: Trainer, module: Module) -> None:
        """Start a bar."""
        self._begin("test", "test", trainer)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        module: Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Move it on."""
        self._advance("test", trainer)

    def on_predict_epoch_start(self, trainer: Trainer, module: Module) -> None:
        """Start a bar."""
        self._begin("predict", "predict", trainer)

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        module: Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Move it on."""
        self._advance("predict", trainer)

    def _begin(self, stage: str, title: str, trainer: Trainer) -> None:
        """Start a stage's bar; a validation within an epoch takes the place of the one before."""
        if self._progress is not None:
            if stage == "validation" and trainer.validates_within_epochs and stage in self._tasks:
                self._progress.remove_task(self._tasks[stage])
            self._tasks[stage] = self._progress.add_task(
                title, total=trainer.num_batches, values=""
            )

    def _advance(self, stage: str, trainer: Trainer) -> None:
        if self._progress is not None and stage in self._tasks:
            shown = trainer.progress_bar_metrics.items()
            text = "  ".join(f"{name} {float(value):.4g}" for name, value in shown)
            self._progress.update(self._tasks[stage], advance=1, values=text)
