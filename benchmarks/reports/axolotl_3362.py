"""Tokens per second and GPU."""

from typing import Any

import torch
import torch.distributed as dist

from distmetrics import Log

THREAD = "axolotl-ai-cloud/axolotl#3362"
DATE = "2026-01-19"
SYMPTOM = "tokens per second and GPU are those of all GPUs: 68 000 for 8 500"
RANKS, BACKEND = 2, "threads"
TOKENS, SECONDS = (16384, 12288), 1.93  # of a rank in a step


def naive(comm: Any) -> float:
    """Divide the tokens of all by the time of a step."""
    tokens = torch.tensor(TOKENS[comm.rank])
    dist.all_reduce(tokens)
    return float(tokens / SECONDS)


def ours(comm: Any) -> float:
    """Log the rank's rate, weighted by what it is a mean over: the seconds."""
    log = Log(comm)
    log.mean("tokens_per_second_per_gpu", TOKENS[comm.rank] / SECONDS, weight=SECONDS)
    return float(log.flush()["tokens_per_second_per_gpu"])


def right() -> float:
    """Return the tokens of all GPUs by their seconds."""
    return sum(TOKENS) / (2 * SECONDS)
