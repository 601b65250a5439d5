"""Values for TensorBoard."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distmetrics.errors import MissingDependencyError
from distmetrics.train.loggers.base import FolderLogger, flat


class TensorBoardLogger(FolderLogger):
    """Writes the event files that ``tensorboard --logdir save_dir`` shows, by torch's writer.

    Args:
        save_dir: where to.
        name: of the experiment; "" for none.
        version: of the run: a number, a text, or None for the first ``version_N`` that is free.

    Raises:
        MissingDependencyError: tensorboard is not installed.
    """

    def __init__(
        self, save_dir: str | Path, name: str = "distmetrics_logs", version: int | str | None = None
    ) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise MissingDependencyError.of("tensorboard", "tensorboard", "TensorBoardLogger")
        super().__init__(save_dir, name, version)
        self._writer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_writer": None}

    @property
    def experiment(self) -> Any:
        """Torch's ``SummaryWriter``, for images and what else it takes; use it on rank 0 alone."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.log_dir)
        return self._writer

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Add a point to each curve."""
        for name, value in metrics.items():
            self.experiment.add_scalar(name, value, step)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Write the table of hyperparameters."""
        if params:
            plain = {name: "None" if each is None else each for name, each in flat(params).items()}
            self.experiment.add_hparams(plain, {"hp_metric": -math.inf}, run_name=".")

    def save(self) -> None:
        """Flush the writer."""
        if self._writer is not None:
            self._writer.flush()

    def finalize(self, status: str) -> None:
        """Close the writer; a later value opens it anew."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None
