"""Lists without a reduction: torchmetrics gathers each element by a collective of its own."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from distmetrics import sync_and_compute

THREAD, DATE = "Lightning-AI/torchmetrics#3503", "2026-09-18"
SYMPTOM = (
    "A metric that keeps lists without a reduction hangs in compute where ranks were updated a "
    "different number of times."
)
RANKS, BACKEND = 2, "threads"


class FoundShare(Metric):
    """The share of objects that were found; a tensor an image is kept."""

    found: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("found", [], dist_reduce_fx=None)

    def update(self, found: Tensor) -> None:
        """Add an image: for each of its objects, whether it was found."""
        self.found.append(found)

    def compute(self) -> Tensor:
        """Return the share over all objects of all images."""
        return torch.cat(self.found).float().mean()


IMAGES = [torch.tensor(each) for each in ([1, 0, 1], [1, 1], [0], [1, 1, 1, 0], [0, 1])]


def _updated(images: list[Tensor]) -> FoundShare:
    metric = FoundShare()
    for found in images:
        metric.update(found)
    return metric


def naive(comm: Any) -> float:
    """Compute a metric of 3 images on one rank, and of 2 on the other."""
    return float(_updated(IMAGES[comm.rank :: 2]).compute())


def ours(comm: Any) -> float:
    """Sync the same metric."""
    return float(sync_and_compute(_updated(IMAGES[comm.rank :: 2])))


def right() -> float:
    """Compute over all images."""
    return float(_updated(IMAGES).compute())
