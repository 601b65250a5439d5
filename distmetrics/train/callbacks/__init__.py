"""What can be done between the steps of a run: keep checkpoints, stop early, show progress."""

from distmetrics.train.callbacks.base import Callback
from distmetrics.train.callbacks.display import ModelSummary, ProgressBar
from distmetrics.train.callbacks.early_stopping import EarlyStopping
from distmetrics.train.callbacks.lr_monitor import LearningRateMonitor
from distmetrics.train.callbacks.model_checkpoint import ModelCheckpoint

__all__ = [
    "Callback",
    "EarlyStopping",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "ProgressBar",
]
