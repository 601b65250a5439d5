"""A compute that raises, and a metric that is used further."""

from typing import Any

import torch
from torchmetrics.retrieval import RetrievalMRR

from distmetrics import sync_and_compute

THREAD, DATE = "Lightning-AI/torchmetrics#3486", "2026-09-08"
SYMPTOM = (
    "After compute raised, a metric stays synced, and its next update and compute are an error."
)
RANKS, BACKEND = 2, "threads"


def _metric() -> RetrievalMRR:
    return RetrievalMRR(empty_target_action="error")


def _early(metric: RetrievalMRR, rank: int) -> None:
    """Add a document that does not answer the rank's query: none does yet."""
    metric.update(torch.tensor([0.9]), torch.tensor([0]), indexes=torch.tensor([rank]))


def _late(metric: RetrievalMRR, rank: int) -> None:
    scores = torch.tensor([0.5, 0.95])
    metric.update(scores, torch.tensor([1, rank]), indexes=torch.tensor([rank, rank]))


def naive(comm: Any) -> float:
    """Compute too early, catch the error, go on."""
    metric = _metric()
    _early(metric, comm.rank)
    try:
        metric.compute()
    except ValueError:
        _late(metric, comm.rank)
    return float(metric.compute())


def ours(comm: Any) -> float:
    """Do the same with a sync of distmetrics."""
    metric = _metric()
    _early(metric, comm.rank)
    try:
        sync_and_compute(metric)
    except ValueError:
        _late(metric, comm.rank)
    return float(sync_and_compute(metric))


def right() -> float:
    """Rank the documents of both queries."""
    metric = _metric()
    for rank in range(RANKS):
        _early(metric, rank)
        _late(metric, rank)
    return float(metric.compute())
