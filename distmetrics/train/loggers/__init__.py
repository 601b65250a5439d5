"""Where logged values go: CSV files, TensorBoard, or a class of your own."""

from distmetrics.train.loggers.base import Logger
from distmetrics.train.loggers.csv import CSVLogger
from distmetrics.train.loggers.tensorboard import TensorBoardLogger

__all__ = ["CSVLogger", "Logger", "TensorBoardLogger"]
