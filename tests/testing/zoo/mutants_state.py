"""Mutants that are wrong in how they keep their state: laws 11 to 13, 16 to 18, 20, 23 and 24."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from distmetrics import current
from distmetrics.testing import laws
from distmetrics.testing.inputs import aggregation
from tests.testing.zoo.base import Mergeable, Specimen, Total


class CountsLooks(Total):
    """Law 11: the second look gets another value than the first."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = [0]

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.looks[0] = 0

    def compute(self) -> Tensor:
        self.looks[0] += 1
        return self.total + self.looks[0]


class NeverComputesAgain(Total):
    """Law 12: keeps the first value for ever, and forgets to throw it away in ``update``."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def compute(self) -> Tensor:
        if not self.kept:
            self.kept.append(self.total)
        return self.kept[0]

    def reset(self) -> None:
        super().reset()
        self.kept.clear()


class DividesInPlace(Total):
    """Law 12: computing changes the state that it computes from, which a sync puts back."""

    def compute(self) -> Tensor:
        self.total /= 2
        return self.total


class ChangesLocalState(Total):
    """Law 13: computing changes a local state behind the sync's back."""

    looks: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("looks", torch.tensor(0), dist_reduce_fx="sum")
        self.held: dict[str, Tensor] = {}

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.held["looks"] = self.looks

    def compute(self) -> Tensor:
        for looks in self.held.values():
            looks += 1
        return self.total


class ResetForgetsOne(Total):
    """Law 16: one of two states survives ``reset``."""

    high: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("high", torch.tensor(-torch.inf), dist_reduce_fx="max")

    def update(self, x: Tensor) -> None:
        super().update(x)
        if x.numel():
            self.high = torch.maximum(self.high, x.max())

    def compute(self) -> tuple[Tensor, Tensor]:
        return self.total, self.high

    def reset(self) -> None:
        high = self.high
        super().reset()
        self.high = high


class CheckpointLacksOne(Total):
    """Law 17: ``state_dict`` leaves the total out."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        found = super().state_dict(*args, **kwargs)
        found.pop(f"{kwargs.get('prefix', '')}total", None)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict=False, assign=assign)


class PickleLacksOne(Total):
    """Law 17: the pickled metric has no data."""

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "total": torch.tensor(0.0, dtype=torch.float64)}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other = type(self).__new__(type(self))
        other.__setstate__(copy.deepcopy(super().__getstate__(), memo))
        return other


class WiderAfterSync(Total):
    """Law 18: float32 in one process, float64 after a sync."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx=lambda rows: rows.double().sum(0))

    def update(self, x: Tensor) -> None:
        self.total += x.sum()


class AsksTheWorld(Mergeable):
    """Law 23: takes the world's size for that of the group that was synced."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total, self.ranks = torch.tensor(0.0, dtype=torch.float64), 1

    def update(self, x: Tensor) -> None:
        self.total = self.total + x.double().sum()

    def merge_state(self, others: Sequence[AsksTheWorld]) -> None:
        self.total = sum((other.total for other in others), self.total)
        self.ranks += sum(other.ranks for other in others)

    def compute(self) -> Tensor:
        return self.total * self.ranks / current().world_size


class SharedCache(Total):
    """Law 24: a cache of the class, so that the second metric gets the first one's value."""

    cache = threading.local()

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.cache.value = None

    def compute(self) -> Tensor:
        if getattr(self.cache, "value", None) is None:
            self.cache.value = self.total
        found: Tensor = self.cache.value
        return found


MUTANTS = [
    Specimen("counts-looks", CountsLooks, breaks=laws.SYNC_IS_IDEMPOTENT),
    Specimen("never-computes-again", NeverComputesAgain, aggregation(low=0.25), laws.OBSERVATION),
    Specimen("divides-in-place", DividesInPlace, aggregation(low=0.25), laws.OBSERVATION),
    Specimen("changes-local-state", ChangesLocalState, breaks=laws.STATE_RESTORED),
    Specimen("reset-forgets-one", ResetForgetsOne, breaks=laws.RESET_IS_NEW),
    Specimen("checkpoint-lacks-one", CheckpointLacksOne, aggregation(low=0.25), laws.ROUND_TRIP),
    Specimen("pickle-lacks-one", PickleLacksOne, aggregation(low=0.25), laws.ROUND_TRIP),
    Specimen("wider-after-sync", WiderAfterSync, breaks=laws.DTYPE_KEPT),
    Specimen("asks-the-world", AsksTheWorld, aggregation(low=0.25), laws.SUBGROUP),
    Specimen("shared-cache", SharedCache, aggregation(low=0.25, min_batches=4), laws.COLLECTION),
]
