"""Regression."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator
from torchmetrics import regression

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import Source, normal, of, paired, uniform

__all__ = ["cases"]

_OUTPUTS = 3
_scalars, _vectors = paired(normal), paired(normal, _OUTPUTS)


def _positive(generator: Generator, n: int) -> Batch:
    return Batch((uniform(generator, n) + 0.1, uniform(generator, n) + 0.1))


def _distributions(generator: Generator, n: int) -> Batch:
    return Batch(tuple(torch.randn(n, 4, generator=generator).softmax(1) for _ in range(2)))


def _ensemble(generator: Generator, n: int) -> Batch:
    return Batch((normal(generator, n, 5), normal(generator, n)))


# Class → variants: the source of batches and the options.
_ALL: dict[str, dict[str, tuple[Source, dict[str, Any]]]] = {
    "ConcordanceCorrCoef": {"": (_scalars, {}), "outputs": (_vectors, {"num_outputs": _OUTPUTS})},
    "ContinuousRankedProbabilityScore": {"": (_ensemble, {})},
    "CosineSimilarity": {"": (_vectors, {}), "none": (_vectors, {"reduction": "none"})},
    "CriticalSuccessIndex": {
        "": (paired(uniform), {"threshold": 0.5}),
        "sequence": (paired(uniform, 4), {"threshold": 0.5, "keep_sequence_dim": 1}),
    },
    "ExplainedVariance": {"": (_scalars, {}), "raw": (_vectors, {"multioutput": "raw_values"})},
    "JensenShannonDivergence": {
        "": (_distributions, {}),
        "none": (_distributions, {"reduction": "none"}),
    },
    "KLDivergence": {"": (_distributions, {}), "none": (_distributions, {"reduction": "none"})},
    "KendallRankCorrCoef": {
        "": (_scalars, {}),
        "outputs": (_vectors, {"num_outputs": _OUTPUTS}),
        "t_test": (_scalars, {"t_test": True}),
    },
    "LogCoshError": {"": (_scalars, {}), "outputs": (_vectors, {"num_outputs": _OUTPUTS})},
    "MeanAbsoluteError": {"": (_scalars, {}), "outputs": (_vectors, {"num_outputs": _OUTPUTS})},
    "MeanAbsolutePercentageError": {"": (_positive, {})},
    "MeanSquaredError": {
        "": (_scalars, {}),
        "outputs": (_vectors, {"num_outputs": _OUTPUTS, "squared": False}),
    },
    "MeanSquaredLogError": {"": (_positive, {})},
    "MinkowskiDistance": {"": (_scalars, {"p": 3})},
    "NormalizedRootMeanSquaredError": {
        "": (_positive, {}),
        "range": (_positive, {"normalization": "range"}),
        "std": (_positive, {"normalization": "std"}),
        "l2": (_vectors, {"normalization": "l2", "num_outputs": _OUTPUTS}),
    },
    "PearsonCorrCoef": {"": (_scalars, {}), "outputs": (_vectors, {"num_outputs": _OUTPUTS})},
    "R2Score": {"": (_scalars, {}), "raw": (_vectors, {"multioutput": "raw_values"})},
    "RelativeSquaredError": {"": (_scalars, {}), "outputs": (_vectors, {"num_outputs": _OUTPUTS})},
    "SpearmanCorrCoef": {"": (_scalars, {}), "outputs": (_vectors, {"num_outputs": _OUTPUTS})},
    "SymmetricMeanAbsolutePercentageError": {"": (_positive, {})},
    "TweedieDevianceScore": {"": (_positive, {"power": 1.5})},
    "WeightedMeanAbsolutePercentageError": {"": (_positive, {})},
}


def cases() -> Iterator[Case]:
    """Yield the cases of this group."""
    for name, variants in _ALL.items():
        for variant, (source, options) in variants.items():
            yield of(getattr(regression, name), source, "regression", variant, **options)
