"""Train and evaluate a model on one device or many, with logged values that are those of one process."""

from distmetrics.strategies.base import Strategy
from distmetrics.strategies.ddp import DDP
from distmetrics.strategies.ddp_spawn import DDPSpawn
from distmetrics.strategies.single import Single
from distmetrics.train.callbacks import Callback, EarlyStopping, ModelCheckpoint, ProgressBar
from distmetrics.train.data import DataModule, EvaluationSampler, TrainingSampler
from distmetrics.train.module import Module
from distmetrics.train.trainer import Trainer

__all__ = [
    "DDP",
    "Callback",
    "DDPSpawn",
    "DataModule",
    "EarlyStopping",
    "EvaluationSampler",
    "ModelCheckpoint",
    "Module",
    "ProgressBar",
    "Single",
    "Strategy",
    "Trainer",
    "TrainingSampler",
]
