"""A metric that is logged on some ranks."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import Log

THREAD = "huggingface/trl#7310"
DATE = "2026-09-20"
SYMPTOM = "a metric that one rank's completions log is averaged with another one of another rank"
RANKS, BACKEND = 2, "threads"
LOGGED = ({"proof": 1.0}, {"format": 0.0})  # what the reward functions of each rank have logged


def naive(comm: Any) -> float:
    """Gather what this rank has, name by name."""
    row = {}
    for name, value in LOGGED[comm.rank].items():
        values = [torch.zeros(()) for _ in range(2)]
        dist.all_gather(values, torch.tensor(value))
        row[name] = float(torch.stack(values).mean())
    return next(iter(row.values()))


def ours(comm: Any) -> float:
    """Log what there is, and flush on every rank."""
    log = Log(comm)
    for name, value in LOGGED[comm.rank].items():
        log.mean(name, value, weight=1)
    return float(log.flush()["proof"])


def right() -> float:
    """Return the mean of the one proof."""
    return 1.0
