"""Where the rows of a :class:`distmetrics.Log` go: files, TensorBoard, a table on the terminal."""

from distmetrics.log.live_table import LiveTable
from distmetrics.log.writers import CSVLogger, Logger, TensorBoardLogger

__all__ = ["CSVLogger", "LiveTable", "Logger", "TensorBoardLogger"]
