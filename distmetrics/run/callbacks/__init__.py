"""What can be done between the steps of a run: keep checkpoints, stop early, show progress."""

from distmetrics.run.callbacks.base import Callback as Callback
from distmetrics.run.callbacks.display import ModelSummary as ModelSummary
from distmetrics.run.callbacks.display import ProgressBar as ProgressBar
from distmetrics.run.callbacks.early_stopping import EarlyStopping as EarlyStopping
from distmetrics.run.callbacks.lr_monitor import LearningRateMonitor as LearningRateMonitor
from distmetrics.run.callbacks.model_checkpoint import ModelCheckpoint as ModelCheckpoint
