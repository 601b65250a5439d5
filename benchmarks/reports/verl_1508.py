"""A mean of means."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import Log

THREAD = "verl-project/verl#1508"
DATE = "2025-05-13"
SYMPTOM = "what ranks have is averaged: an accuracy of 0.7 for 0.667 with 100 and 200 samples"
RANKS, BACKEND = 2, "threads"
ACCURACY, SAMPLES = (0.8, 0.6), (100, 200)


def naive(comm: Any) -> float:
    """Average the ranks' accuracies."""
    accuracy = torch.tensor(ACCURACY[comm.rank])
    dist.all_reduce(accuracy)
    return float(accuracy / comm.world_size)


def ours(comm: Any) -> float:
    """Log with the number of samples."""
    log = Log(comm)
    log.mean("accuracy", ACCURACY[comm.rank], weight=SAMPLES[comm.rank])
    return float(log.flush()["accuracy"])


def right() -> float:
    """Return the accuracy of 300 samples."""
    return (80 + 120) / 300
