"""Aggregation, and the two that look at the last updates only."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Generator
from torchmetrics import aggregation

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import normal, of, uniform

__all__ = ["cases"]


def _values(generator: Generator, n: int) -> Batch:
    return Batch((normal(generator, n),))


def _number(generator: Generator, n: int) -> Batch:
    return Batch((float(normal(generator, 1)),))


def _weighted(generator: Generator, n: int) -> Batch:
    return Batch((normal(generator, n),), {"weight": uniform(generator, n)})


def cases() -> Iterator[Case]:
    """Yield the cases of this group."""
    for name in (
        "CatMetric",
        "MaxMetric",
        "MeanMetric",
        "MinMetric",
        "SumMetric",
        "RunningMean",
        "RunningSum",
    ):
        yield of(getattr(aggregation, name), _values, "aggregation")
    for name in ("CatMetric", "MaxMetric", "SumMetric"):
        yield of(getattr(aggregation, name), _number, "aggregation", "numbers")
    yield of(aggregation.MeanMetric, _weighted, "aggregation", "weights")
