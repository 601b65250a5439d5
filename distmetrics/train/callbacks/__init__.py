"""What can be done between the steps of a run: keep checkpoints, stop early, show progress."""

from distmetrics.train.callbacks.base import Callback
from distmetrics.train.callbacks.checkpoint import ModelCheckpoint
from distmetrics.train.callbacks.early_stopping import EarlyStopping
from distmetrics.train.callbacks.progress import ProgressBar

__all__ = ["Callback", "EarlyStopping", "ModelCheckpoint", "ProgressBar"]
