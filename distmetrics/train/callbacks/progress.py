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

__all__ = ["ProgressBar"]


class ProgressBar(Callback):
    """A bar for each epoch on rank 0's standard error, with the values logged with ``prog_bar=True``.

    Raises:
        MissingDependencyError: rich is not installed.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("rich") is None:
            raise MissingDependencyError.of("rich", "train", "the progress bar")
        self._progress: Any = None
        self._task: Any = None

    @staticmethod
    def wanted(flag: bool | None) -> bool:
        """Resolve the trainer's ``enable_progress_bar``: None is yes where rich is installed and someone looks."""
        if flag is not None:
            return flag
        return sys.stderr is not None and sys.stderr.isatty() and importlib.util.find_spec("rich") is not None

    def setup(self, trainer: Trainer, module: Module, stage: str) -> None:
        """Put up the display."""
        if trainer.is_global_zero:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
        self._progress = self._task = None

    def on_train_epoch_start(self, trainer: Trainer, module: Module) -> None:
        """Start a bar."""
        self._begin(f"epoch {trainer.current_epoch}", trainer)

    def on_train_batch_end(self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move it on."""
        self._advance(trainer)

    def on_validation_epoch_start(self, trainer: Trainer, module: Module) -> None:
        """Start a bar."""
        self._begin("validation", trainer)

    def on_validation_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Move it on."""
        self._advance(trainer)

    def on_test_epoch_start(self, trainer: Trainer, module: Module) -> None:
        """Start a bar."""
        self._begin("test", trainer)

    def on_test_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Move it on."""
        self._advance(trainer)

    def on_predict_epoch_start(self, trainer: Trainer, module: Module) -> None:
        """Start a bar."""
        self._begin("predict", trainer)

    def on_predict_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Move it on."""
        self._advance(trainer)

    def _begin(self, title: str, trainer: Trainer) -> None:
        if self._progress is not None:
            self._task = self._progress.add_task(title, total=trainer.num_batches, values="")

    def _advance(self, trainer: Trainer) -> None:
        if self._progress is not None:
            shown = trainer.progress_bar_metrics.items()
            text = "  ".join(f"{name} {float(value):.4g}" for name, value in shown)
            self._progress.update(self._task, advance=1, values=text)
