"""A metric of masks: lists of tuples beside lists of tensors, one an image, some empty."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from distmetrics import sync_and_compute

THREAD, DATE = "roboflow/rf-detr#1085", "2026-06-01"
SYMPTOM = (
    "Validation of segmentation hangs at the sync of its metric at scale: ranks make different "
    "numbers of collectives."
)
RANKS, BACKEND = 2, "threads"
# scores and areas of the masks of 5 images; the second and the last have none
SCORES = [[0.9, 0.4], [], [0.7], [0.8, 0.6, 0.1], []]
AREAS = [[10, 20], [], [5], [8, 8, 2], []]


class MeanArea(Metric):
    """The mean area of masks, weighted by their scores; masks are pairs of a size and bytes."""

    scores: list[Tensor]
    masks: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("scores", [], dist_reduce_fx=None)
        self.add_state("masks", [], dist_reduce_fx=None)

    def update(self, scores: list[float], areas: list[int]) -> None:
        """Add an image."""
        self.scores.append(torch.tensor(scores))
        self.masks.append(tuple(((area, 1), b"\1" * area) for area in areas))

    def compute(self) -> Tensor:
        """Return Σ score·area / Σ score."""
        areas = torch.tensor([float(len(runs)) for image in self.masks for _, runs in image])
        scores = torch.cat(self.scores)
        return (scores * areas).sum() / scores.sum()


def _updated(images: range) -> MeanArea:
    metric = MeanArea()
    for image in images:
        metric.update(SCORES[image], AREAS[image])
    return metric


def naive(comm: Any) -> float:
    """Compute a metric of 3 images on one rank, and of 2 on the other."""
    return float(_updated(range(comm.rank, 5, 2)).compute())


def ours(comm: Any) -> float:
    """Sync the same metric."""
    return float(sync_and_compute(_updated(range(comm.rank, 5, 2))))


def right() -> float:
    """Compute over all images."""
    return float(_updated(range(5)).compute())
