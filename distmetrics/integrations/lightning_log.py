"""Lightning: a callback with a log whose rows, of all ranks, go to the trainer's loggers."""

import sys
from typing import Any

import torch

from distmetrics.log.log import Log
from distmetrics.log.writers import numbers

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback  # type: ignore[assignment,unused-ignore]
else:
    from lightning.pytorch import Callback  # type: ignore[assignment,unused-ignore]

__all__ = ["LogMetrics"]


class LogMetrics(Callback):  # type: ignore[misc,unused-ignore]
    """Gives the trainer's loggers what a log is told on all ranks, in one exchange a row.

    Tell the log in ``training_step``, or a hook of training. Where Lightning writes what
    ``self.log`` was told, each ``log_every_n_steps``, the log is flushed, and all loggers get the
    row, with Lightning's step. Its values are also in ``trainer.callback_metrics``, for
    ``ModelCheckpoint`` and ``EarlyStopping`` to watch. The rest they get at the end of the
    training; what was logged since the last row is in no checkpoint.

    Args:
        log: may have a layout, and writers of its own.

    >>> from distmetrics.integrations.lightning_log import LogMetrics
    >>> from lightning.pytorch import Trainer
    >>> log = Log()
    >>> flags = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    >>> trainer = Trainer(callbacks=[LogMetrics(log)], **flags)
    >>> log.mean("loss", 0.5, weight=8)
    """

    def __init__(self, log: Log) -> None:
        self._log = log  # Lightning has a "log" of its own for callbacks

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write a row where Lightning does."""
        is_between = trainer.fit_loop._should_accumulate()
        if trainer._logger_connector.should_update_logs and not is_between:
            self._write(trainer, trainer.fit_loop.epoch_loop._batches_that_stepped)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the rest."""
        self._write(trainer, max(0, trainer.fit_loop.epoch_loop._batches_that_stepped - 1))

    def _write(self, trainer: Any, step: int) -> None:
        row = numbers(self._log.flush(step))
        tensors = {name: torch.tensor(value, device="cpu") for name, value in row.items()}
        trainer.callback_metrics.update(tensors)
        for logger in trainer.loggers if row else ():  # they write on the first rank alone
            logger.log_metrics(row, step)
            logger.save()
