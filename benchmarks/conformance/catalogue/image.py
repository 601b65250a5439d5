"""Image metrics that compare pixels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Generator
from torchmetrics import image
from torchmetrics.image.d_s import SpatialDistortionIndex
from torchmetrics.image.qnr import QualityWithNoReference

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import Source, of, paired, uniform

__all__ = ["cases"]

_small, _gray, _wide = (
    paired(uniform, 3, 16, 16),
    paired(uniform, 1, 16, 16),
    paired(uniform, 1, 48, 48),
)


def _single(generator: Generator, n: int) -> Batch:
    return Batch((uniform(generator, n, 3, 8, 8),))


def _pansharpened(generator: Generator, n: int) -> Batch:
    sizes = {"ms": 16, "pan": 32, "pan_lr": 16}
    target = {name: uniform(generator, n, 3, size, size) for name, size in sizes.items()}
    return Batch((uniform(generator, n, 3, 32, 32), target))


_ALL: dict[str, dict[str, tuple[Source, dict[str, Any]]]] = {
    "ErrorRelativeGlobalDimensionlessSynthesis": {
        "": (_small, {}),
        "none": (_small, {"reduction": "none"}),
    },
    "MultiScaleStructuralSimilarityIndexMeasure": {
        "": (_wide, {"kernel_size": 5, "sigma": 0.5, "betas": (0.5, 0.5), "data_range": 1.0}),
        "none": (
            _wide,
            {
                "kernel_size": 5,
                "sigma": 0.5,
                "betas": (0.5, 0.5),
                "data_range": 1.0,
                "reduction": "none",
            },
        ),
    },
    "PeakSignalNoiseRatio": {
        "": (_small, {"data_range": 1.0}),
        "dim": (_small, {"data_range": 1.0, "dim": (1, 2, 3)}),
        "none": (_small, {"data_range": 1.0, "dim": (1, 2, 3), "reduction": "none"}),
    },
    "PeakSignalNoiseRatioWithBlockedEffect": {"": (_gray, {"data_range": 1.0})},
    "RelativeAverageSpectralError": {"": (_small, {})},
    "RootMeanSquaredErrorUsingSlidingWindow": {"": (_small, {})},
    "SpatialCorrelationCoefficient": {"": (_small, {})},
    "SpectralAngleMapper": {"": (_small, {}), "none": (_small, {"reduction": "none"})},
    "SpectralDistortionIndex": {"": (_small, {})},
    "StructuralSimilarityIndexMeasure": {
        "": (_small, {"data_range": 1.0}),
        "range of each batch": (_small, {}),
        "none": (_small, {"data_range": 1.0, "reduction": "none"}),
        "full image": (_small, {"data_range": 1.0, "return_full_image": True}),
    },
    "TotalVariation": {"": (_single, {}), "none": (_single, {"reduction": "none"})},
    "UniversalImageQualityIndex": {"": (_small, {}), "none": (_small, {"reduction": "none"})},
    "VisualInformationFidelity": {"": (_wide, {}), "none": (_wide, {"reduction": "none"})},
}


def cases() -> Iterator[Case]:
    """Yield the cases of this group."""
    for name, variants in _ALL.items():
        for variant, (source, options) in variants.items():
            yield of(getattr(image, name), source, "image", variant, **options)
    for cls in (SpatialDistortionIndex, QualityWithNoReference):
        yield of(cls, _pansharpened, "image")
