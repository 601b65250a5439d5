"""The norm of a gradient that is not averaged yet."""

from typing import Any

import torch

from distmetrics import grad_norm

THREAD = "modelscope/ms-swift#8341"
DATE = "2026-03-14"
SYMPTOM = "the gradient norm under DeepSpeed's ZeRO-0 is one rank's, far above that of ZeRO-3"
RANKS, BACKEND = 2, "threads"
GRADIENTS = torch.tensor([[3.0, 4.0], [-2.0, 4.0]])  # of the ranks


def naive(comm: Any) -> float:
    """Log the norm of this rank's gradient."""
    return float(GRADIENTS[comm.rank].norm())


def ours(comm: Any) -> float:
    """Ask for the norm of the model's gradients."""
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = GRADIENTS[comm.rank]
    return float(grad_norm(weight, comm=comm))


def right() -> float:
    """Return the norm of the mean gradient."""
    return float(GRADIENTS.mean(0).norm())
