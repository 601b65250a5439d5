"""Clustering and nominal association: both compare labels without an order."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Generator
from torchmetrics import clustering, nominal
from torchmetrics.clustering.cluster_accuracy import ClusterAccuracy

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import integers, normal, of, uniform

__all__ = ["cases"]

_CLASSES = 3
_EXTRINSIC = (
    "AdjustedMutualInfoScore",
    "AdjustedRandScore",
    "CompletenessScore",
    "FowlkesMallowsIndex",
    "HomogeneityScore",
    "MutualInfoScore",
    "NormalizedMutualInfoScore",
    "RandScore",
    "VMeasureScore",
)
_INTRINSIC = ("CalinskiHarabaszScore", "DaviesBouldinScore", "DunnIndex")
_NOMINAL = ("CramersV", "PearsonsContingencyCoefficient", "TheilsU", "TschuprowsT")


def _labels(generator: Generator, n: int) -> Batch:
    return Batch((integers(generator, _CLASSES, n), integers(generator, _CLASSES, n)))


def _points(generator: Generator, n: int) -> Batch:
    return Batch((normal(generator, n, 2), integers(generator, 2, n)))


def _ratings(generator: Generator, n: int) -> Batch:
    first = integers(generator, 6, n, 1)
    return Batch(
        (first.new_tensor([[0, 5]]) + first.new_tensor([[1, -1]]) * first,)
    )  # five raters choose of two


def _rated(generator: Generator, n: int) -> Batch:
    return Batch((uniform(generator, n, 3, 5),))


def cases() -> Iterator[Case]:
    """Yield the cases of these groups."""
    for name in _EXTRINSIC:
        yield of(getattr(clustering, name), _labels, "clustering")
    for name in _INTRINSIC:
        yield of(getattr(clustering, name), _points, "clustering")
    yield of(ClusterAccuracy, _labels, "clustering", num_classes=_CLASSES)
    for name in _NOMINAL:
        yield of(getattr(nominal, name), _labels, "nominal", num_classes=_CLASSES)
    yield of(nominal.FleissKappa, _ratings, "nominal")
    yield of(nominal.FleissKappa, _rated, "nominal", "probs", mode="probs")
