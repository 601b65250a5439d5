"""Segmentation and shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Generator
from torchmetrics import segmentation, shape

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import integers, normal, of, paired

__all__ = ["cases"]

_CLASSES = 3
_OPTIONS: dict[str, Any] = {"num_classes": _CLASSES, "input_format": "index"}


def _masks(generator: Generator, n: int) -> Batch:
    return Batch((integers(generator, _CLASSES, n, 8, 8), integers(generator, _CLASSES, n, 8, 8)))


def cases() -> Iterator[Case]:
    """Yield the cases of these groups."""
    group = "segmentation"
    for name in ("DiceScore", "GeneralizedDiceScore", "HausdorffDistance", "MeanIoU"):
        yield of(getattr(segmentation, name), _masks, group, **_OPTIONS)
    yield of(
        segmentation.DiceScore, _masks, group, "global", aggregation_level="global", **_OPTIONS
    )
    yield of(segmentation.DiceScore, _masks, group, "average=none", average="none", **_OPTIONS)
    yield of(
        segmentation.GeneralizedDiceScore, _masks, group, "per_class", per_class=True, **_OPTIONS
    )
    yield of(segmentation.MeanIoU, _masks, group, "per_class", per_class=True, **_OPTIONS)
    for reduction in ("mean", "sum"):
        variant = "" if reduction == "mean" else reduction
        yield of(
            shape.ProcrustesDisparity, paired(normal, 6, 3), "shape", variant, reduction=reduction
        )
