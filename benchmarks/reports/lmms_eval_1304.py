"""A rank whose evaluation raises, and which goes home."""

from typing import Any

import torch.distributed as dist

from distmetrics import all_gather_object

THREAD = "EvolvingLMMs-Lab/lmms-eval#1304"
DATE = "2026-04-23"
SYMPTOM = "one rank's evaluation raises and is caught; the others wait for it in the gather"
RANKS, BACKEND = 2, "gloo"


def _score(rank: int) -> float:
    """Return the score of a rank's share, of which one has an output that cannot be read."""
    return float("3.0" if rank == 0 else "no answer")


def _evaluate(comm: Any, gather: Any) -> float | None:
    """Score and gather, and go on where that fails."""
    try:
        return float(sum(gather(_score(comm.rank))))
    except ValueError:
        return None


def _gather(score: float) -> list[Any]:
    scores: list[Any] = [None, None]
    dist.all_gather_object(scores, score)
    return scores


def naive(comm: Any) -> float | None:
    """Gather with torch."""
    return _evaluate(comm, _gather)


def ours(comm: Any) -> float | None:
    """Gather with our call."""
    return _evaluate(comm, all_gather_object)


def right() -> float:
    """Return the scores of both ranks."""
    return 6.0
