"""Detection: boxes, masks, panoptic maps."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor
from torchmetrics.detection import ciou, diou, giou, iou, mean_ap, panoptic_qualities

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import integers, of

__all__ = ["cases"]

_SIDE = 32


def _boxes(generator: Generator, count: int) -> Tensor:
    corner = integers(generator, _SIDE // 2, count, 2)
    return torch.cat(
        [corner, corner + 1 + integers(generator, _SIDE // 2 - 1, count, 2)], 1
    ).float()


def _masks(boxes: Tensor) -> Tensor:
    masks = torch.zeros(len(boxes), _SIDE, _SIDE, dtype=torch.bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes.long().tolist(), strict=True):
        mask[top:bottom, left:right] = True
    return masks


def _detections(generator: Generator, n: int) -> Batch:
    """Make n images with up to three objects, found nearly where they are; some have none."""
    preds, target = [], []
    for _ in range(n):
        count = int(integers(generator, 4, 1))
        truth = _boxes(generator, count)
        found = (truth + integers(generator, 3, count, 4) - 1).clamp(0, _SIDE)
        labels = integers(generator, 2, count)
        scores = torch.rand(
            count, generator=generator
        )  # all different: the order of equal ones would be arbitrary
        preds.append({"boxes": found, "scores": scores, "labels": labels, "masks": _masks(found)})
        target.append({"boxes": truth, "labels": labels, "masks": _masks(truth)})
    return Batch((preds, target))


def _panoptic(generator: Generator, n: int) -> Batch:
    maps = [
        torch.stack([integers(generator, 3, n, 8, 8), integers(generator, 2, n, 8, 8)], -1)
        for _ in range(2)
    ]
    return Batch(tuple(maps))


def cases() -> Iterator[Case]:
    """Yield the cases of this group."""
    overlaps = (
        iou.IntersectionOverUnion,
        giou.GeneralizedIntersectionOverUnion,
        diou.DistanceIntersectionOverUnion,
        ciou.CompleteIntersectionOverUnion,
    )
    for cls in overlaps:
        yield of(cls, _detections, "detection")
    yield of(overlaps[0], _detections, "detection", "class_metrics", class_metrics=True)
    precision = mean_ap.MeanAveragePrecision
    yield of(precision, _detections, "detection")
    yield of(precision, _detections, "detection", "segm", iou_type="segm")
    yield of(precision, _detections, "detection", "class_metrics", class_metrics=True)
    for quality in (panoptic_qualities.PanopticQuality, panoptic_qualities.ModifiedPanopticQuality):
        yield of(quality, _panoptic, "detection", things={0, 1}, stuffs={2})
