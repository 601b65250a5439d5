"""Metrics whose ``update`` sets attributes that are no states, and a user's own ones of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torchmetrics as tm
from torch import Tensor
from torchmetrics.image import RootMeanSquaredErrorUsingSlidingWindow
from torchmetrics.segmentation import MeanIoU


class Own(tm.Metric):
    """The shape of an input, seen in a method that ``update`` calls; a state beside it."""

    width: int
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def _see(self, x: Tensor) -> None:
        self.width = x.shape[1]

    def update(self, x: Tensor) -> None:
        self._see(x)
        self.total += x.sum()

    def compute(self) -> Tensor:
        return self.total / self.width


class Large(Own):
    """A tensor as an attribute, in a subclass whose update calls the base's."""

    def update(self, x: Tensor) -> None:
        super().update(x)
        if not hasattr(self, "scale"):
            self.scale = torch.arange(400.0) + x.shape[1]

    def compute(self) -> Tensor:
        return super().compute() * self.scale.sum()


class Named(Own):
    """An attribute that is of the rank's own in a class of torchmetrics, and not here."""

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.batch_size = len(x)

    def compute(self) -> Tensor:
        return super().compute() / self.batch_size


class Adds(Own):
    """Counts in an attribute: what one process has is the sum, but nobody says so."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.samples += len(x)

    def compute(self) -> Tensor:
        return self.total / self.samples


class KeepsFunction(Own):
    def update(self, x: Tensor) -> None:
        super().update(x)
        self.function = lambda y: y + 1  # distlint: ignore[DL005] it must not be sendable

    def compute(self) -> Tensor:
        return torch.as_tensor(self.function(self.total))


class Notes(Own):
    """Sets what computing never reads, and what each rank has of its own; nobody needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.note: Any = print

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.note = lambda: x  # distlint: ignore[DL005] it must not be sendable
        self.calls = getattr(self, "calls", 0) + 1


class Raises(Own):
    def compute(self) -> Tensor:
        raise ZeroDivisionError(self.width)


def windows(metric: Any, generator: torch.Generator) -> None:
    metric.update(*torch.rand(2, 3, 3, 16, 16, generator=generator))


def masks(metric: Any, generator: torch.Generator) -> None:
    metric.update(*torch.randint(0, 2, (2, 3, 3, 8, 8), generator=generator))


def numbers(metric: Any, generator: torch.Generator) -> None:
    metric.update(torch.randint(0, 64, (5, 4), generator=generator) / 64)


class Sample(NamedTuple):
    make: Callable[[], Any]
    feed: Callable[[Any, torch.Generator], None]
    rounds: int = 2  # where some ranks have no data


SAMPLES: dict[str, Sample] = {
    "RMSE-SW": Sample(RootMeanSquaredErrorUsingSlidingWindow, windows, 1),
    "MeanIoU of each class": Sample(lambda: MeanIoU(per_class=True), masks),
    "own": Sample(Own, numbers),
    "own, large": Sample(Large, numbers),
    "own, by name": Sample(Named, numbers),
    "own, not needed": Sample(Notes, numbers),
    "collection": Sample(
        lambda: tm.MetricCollection({"a": Own(), "b": Large()}, compute_groups=False),
        numbers,
    ),
}
