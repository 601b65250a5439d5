"""Mutants that are wrong on meshes: laws 25 to 27."""

from __future__ import annotations

import threading
import weakref
from typing import Any, ClassVar

import torch
from torch import Tensor

from distmetrics import current
from distmetrics.testing import laws
from distmetrics.testing.inputs import aggregation
from tests.testing.zoo.base import Specimen, Total


class AddsNoise(Total):
    """Law 25: its state is no function of the samples."""

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.total += 1e-9 * torch.rand((), dtype=torch.float64)


class KnowsItsNumber(Total):
    """Law 26: takes the even ranks of a large job for those that need a correction."""

    def compute(self) -> Tensor:
        comm = current()
        return self.total + (comm.world_size > 4 and comm.rank % 2 == 0)


class First(threading.Event):
    """The first number that rank 0 of a world saw."""

    value = 0.0


class AsksRankZero(Total):
    """Law 27: uses what rank 0 has told all ranks, whether its samples count or not."""

    worlds: ClassVar[weakref.WeakKeyDictionary[Any, First]] = weakref.WeakKeyDictionary()
    lock = threading.Lock()

    def update(self, x: Tensor) -> None:
        super().update(x)
        first = self.first()
        if current().rank == 0 and not first.is_set():
            first.value = float(x.reshape(-1)[0])
            first.set()

    def first(self) -> First:
        with self.lock:
            return self.worlds.setdefault(getattr(current().transport.tasks, "meetings", self), First())

    def compute(self) -> Tensor:
        first = self.first()
        first.wait(10)
        return self.total + first.value


MUTANTS = [
    Specimen("adds-noise", AddsNoise, breaks=laws.REPLICA_NEUTRAL, judged=laws.LAYOUTS),
    Specimen("knows-its-number", KnowsItsNumber, breaks=laws.AXIS_ORDER, judged=laws.LAYOUTS),
    Specimen(
        "asks-rank-zero",
        AsksRankZero,
        aggregation(low=0.25, min_batches=4),
        breaks=laws.OWNER_ONLY,
        judged=laws.LAYOUTS,
    ),
]
