"""Train and evaluate a model on one device or many; logged values are those of one process."""

from distmetrics.data.sharding import EvaluationSampler, TrainingSampler
from distmetrics.log.writers import CSVLogger, Logger, TensorBoardLogger
from distmetrics.run.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    ProgressBar,
)
from distmetrics.run.context import RunContext
from distmetrics.run.data import DataModule
from distmetrics.run.module import Module
from distmetrics.run.seed import seed_everything
from distmetrics.run.trainer import Trainer
from distmetrics.strategies.base import Single, Strategy
from distmetrics.strategies.ddp import DDP, DDPSpawn

__all__ = [
    "DDP",
    "CSVLogger",
    "Callback",
    "DDPSpawn",
    "DataModule",
    "EarlyStopping",
    "EvaluationSampler",
    "LearningRateMonitor",
    "Logger",
    "ModelCheckpoint",
    "ModelSummary",
    "Module",
    "ProgressBar",
    "RunContext",
    "Single",
    "Strategy",
    "TensorBoardLogger",
    "Trainer",
    "TrainingSampler",
    "seed_everything",
]
