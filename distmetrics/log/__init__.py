"""Where the rows of a :class:`distmetrics.Log` go: files, TensorBoard, a table on the terminal."""

from distmetrics.log.writers import CSVLogger, LiveTable, Logger, TensorBoardLogger

__all__ = ["CSVLogger", "LiveTable", "Logger", "TensorBoardLogger"]
