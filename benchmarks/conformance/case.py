"""What is run: a metric, how its batches are made, and how they are dealt to ranks."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["LAYOUTS", "Batch", "Case", "Source", "batches", "deal"]


@dataclass(frozen=True)
class Batch:
    """The arguments of one ``metric.update(...)``."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


Source = Callable[[torch.Generator, int], Batch | list[Batch]]


@dataclass(frozen=True)
class Case:
    """A metric as it is constructed, and a source of batches for it."""

    # the class, with what is special about this construction in brackets:
    # ``BinaryAUROC[thresholds=8]``
    name: str
    group: str  # torchmetrics' subpackage
    make: Callable[[], Any]  # constructs the metric
    batch: Source  # makes a batch of n samples, or several where one batch takes several updates

    @property
    def kind(self) -> str:
        """The class alone."""
        return self.name.partition("[")[0]


def _ragged(rank: int) -> list[int]:
    return [3 + rank % 3, 1 + (2 * rank + 1) % 4, 2]


# Name → sizes of one rank's batches, and whether the rank has any.
LAYOUTS: dict[str, tuple[Callable[[int], list[int]], Callable[[int, int], bool]]] = {
    "even": (lambda rank: [4, 4, 4], lambda rank, size: True),
    "ragged": (_ragged, lambda rank, size: True),
    "batch counts": (lambda rank: [3] * (1 + (2 * rank + 1) % 3), lambda rank, size: True),
    "size 1": (lambda rank: [1] * (3 + rank % 2), lambda rank, size: True),
    "empty first": (_ragged, lambda rank, size: rank != 0),
    "empty last": (_ragged, lambda rank, size: rank != size - 1),
    "empty but one": (_ragged, lambda rank, size: rank == size // 2),
}


def deal(layout: str, world_size: int) -> list[list[int]]:
    """Return the sizes of every rank's batches."""
    sizes, has_data = LAYOUTS[layout]
    return [sizes(rank) if has_data(rank, world_size) else [] for rank in range(world_size)]


def batches(case: Case, layout: str, world_size: int, rank: int) -> list[Batch]:
    """Make one rank's batches: the same ones whoever asks, in whatever process."""
    made: list[Batch] = []
    for index, size in enumerate(deal(layout, world_size)[rank]):
        seed = zlib.crc32(f"{case.kind}/{layout}/{rank}/{index}".encode())
        generator = torch.Generator().manual_seed(seed)
        batch = case.batch(generator, size)
        made += batch if isinstance(batch, list) else [batch]
    return made
