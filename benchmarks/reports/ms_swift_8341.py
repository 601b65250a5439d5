"""The norm of a gradient that is not averaged yet."""

from typing import Any

import torch

from distmetrics import Log

THREAD = "modelscope/ms-swift#8341"
DATE = "2026-03-14"
SYMPTOM = "the gradient norm under DeepSpeed's ZeRO-0 is one rank's, far above that of ZeRO-3"
RANKS, BACKEND = 2, "threads"
GRADIENTS = torch.tensor([[3.0, 4.0], [-2.0, 4.0]])  # of the ranks


def naive(comm: Any) -> float:
    """Log the norm of this rank's gradient."""
    return float(GRADIENTS[comm.rank].norm())


def ours(comm: Any) -> float:
    """Log it as docs/log.md does."""
    log = Log(comm)
    log.max("grad_norm", GRADIENTS[comm.rank].norm())
    return log.flush()["grad_norm"]


def right() -> float:
    """Return the norm of the mean gradient."""
    return float(GRADIENTS.mean(0).norm())
