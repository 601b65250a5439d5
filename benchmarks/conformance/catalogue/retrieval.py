"""Retrieval: the documents of a query are spread over batches, and so over ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator
from torchmetrics import retrieval

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import integers, of

__all__ = ["cases"]


def _documents(generator: Generator, n: int) -> Batch:
    scores = torch.rand(
        n, generator=generator
    )  # all different: the order of equal ones would be arbitrary
    relevant = integers(generator, 2, n)
    return Batch((scores, relevant), {"indexes": integers(generator, 5, n)})


def cases() -> Iterator[Case]:
    """Yield the cases of this group."""
    for name in sorted(retrieval.__all__):
        yield of(getattr(retrieval, name), _documents, "retrieval")
    yield of(retrieval.RetrievalMAP, _documents, "retrieval", "skip", empty_target_action="skip")
    yield of(
        retrieval.RetrievalPrecision,
        _documents,
        "retrieval",
        "top_k, median",
        top_k=2,
        aggregation="median",
    )
