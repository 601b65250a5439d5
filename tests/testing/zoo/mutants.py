"""Metrics that break one law each; the number of the law stands in the docstring."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from distmetrics import all_reduce, broadcast, current
from distmetrics.testing import function, laws
from distmetrics.testing.inputs import aggregation
from tests.testing.zoo.base import WIDE, Mergeable, Specimen, Total

# Wrong under some sharding.


class MeanOfRanks(Total):
    """1: averages the ranks' totals, as ``sync_dist=True`` does by default."""

    more: ClassVar = {"ranks": (0, "sum")}

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.ranks = torch.tensor(1)

    def compute(self) -> Tensor:
        return self.total / self.ranks


class RankInTheValue(Total):
    """2: all ranks but the first add something of their own."""

    def compute(self) -> Tensor:
        return self.total + (current().rank > 0)


class HighestFromZero(Mergeable):
    """3: a rank without data holds 0, which is higher than any negative number."""

    high: Tensor | None

    def reset(self) -> None:
        self.high = None

    def update(self, x: Tensor) -> None:
        self.high = x.max() if self.high is None else torch.maximum(self.high, x.max())

    def merge_state(self, others: Sequence[HighestFromZero]) -> None:
        for other in others:
            self.high = torch.maximum(self.compute(), other.compute())

    def compute(self) -> Tensor:
        return torch.tensor(0.0) if self.high is None else self.high


class ContentOfEmptyBatch(Total):
    """4: the mean of a batch times its size, NaN without samples."""

    def update(self, x: Tensor) -> None:
        self.total += x.double().mean() * x.numel()


class ForgetsWeights(Mergeable):
    """5: a merged mean is right, but has the weight of one of its parts when it is merged again."""

    def reset(self) -> None:
        self.mean, self.count = WIDE, 0

    def update(self, x: Tensor) -> None:
        count = self.count + x.numel()
        self.mean = (self.mean * self.count + x.double().sum()) / max(1, count)
        self.count = count

    def merge_state(self, others: Sequence[ForgetsWeights]) -> None:
        parts = [part for part in (self, *others) if part.count]
        count = sum(part.count for part in parts)
        self.mean = sum(part.mean * part.count for part in parts) / max(1, count)  # type: ignore[assignment]
        self.count = parts[0].count if parts else 0

    def compute(self) -> Tensor:
        return self.mean


class LastScale(Total):
    """6: totals in the unit that the last rank was told."""

    more: ClassVar = {"scale": (1.0, lambda rows: rows[-1])}

    def update(self, x: Tensor, scale: float) -> None:  # type: ignore[override]
        super().update(x)
        if x.numel():
            self.scale = torch.tensor(scale)

    def compute(self) -> Tensor:
        return self.total * self.scale


class Tour(Total):
    """7: the length of the way from sample to sample and back to the first; two ranks may change places."""

    more: ClassVar = {"places": ([], "cat")}

    def update(self, x: Tensor) -> None:
        self.places.append(x)  # type: ignore[operator]

    def compute(self) -> Tensor:
        places = torch.cat(self.places) if isinstance(self.places, list) else self.places
        return (places - places.roll(1)).abs().sum()


class TotalOfABatch(Total):
    """8: divides by the number of batches."""

    more: ClassVar = {"batches": (0, "sum")}

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.batches += bool(x.numel())

    def compute(self) -> Tensor:
        return self.total / self.batches


class FloatTotal(Total):
    """9: float32 totals, whose last bit depends on the order."""

    more: ClassVar = {"total": (0.0, "sum")}


class CountsPadding(Total):
    """10: is told which samples they are, and does not look."""

    def update(self, x: Tensor, indices: Tensor) -> None:  # type: ignore[override]
        super().update(x)


# Wrong in how they keep their state.


class CountsLooks(Total):
    """11: the second look gets another value than the first."""

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
    """12: keeps the first value for ever, and forgets to throw it away in ``update``."""

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
    """12: computing changes the state that it computes from, which a sync puts back."""

    def compute(self) -> Tensor:
        self.total /= 2
        return self.total


class ChangesLocalState(Total):
    """13: computing changes a local state behind the sync's back."""

    more: ClassVar = {"looks": (0, "sum")}

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, Any] = {}

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.held["looks"] = self.looks

    def compute(self) -> Tensor:
        for looks in self.held.values():
            looks += 1
        return self.total


class ResetForgetsOne(Total):
    """16: one of two states survives ``reset``."""

    more: ClassVar = {"high": (-torch.inf, "max")}

    def update(self, x: Tensor) -> None:
        super().update(x)
        if x.numel():
            self.high = torch.maximum(self.high, x.max())  # type: ignore[has-type]

    def compute(self) -> tuple[Any, ...]:
        return self.total, self.high

    def reset(self) -> None:
        high = self.high
        super().reset()
        self.high = high


class CheckpointLacksOne(Total):
    """17: ``state_dict`` leaves the total out."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        found = super().state_dict(*args, **kwargs)
        found.pop(f"{kwargs.get('prefix', '')}total", None)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict=False, assign=assign)


class PickleLacksOne(Total):
    """17: the pickled metric has no data."""

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "total": WIDE.clone()}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other = type(self).__new__(type(self))
        other.__setstate__(copy.deepcopy(super().__getstate__(), memo))
        return other


class WiderAfterSync(Total):
    """18: float32 in one process, float64 after a sync."""

    more: ClassVar = {"total": (0.0, lambda rows: rows.double().sum(0))}


class AsksTheWorld(Mergeable):
    """23: takes the world's size for that of the group that was synced."""

    def reset(self) -> None:
        self.total, self.ranks = WIDE, 1

    def update(self, x: Tensor) -> None:
        self.total = self.total + x.double().sum()

    def merge_state(self, others: Sequence[AsksTheWorld]) -> None:
        self.total = sum((other.total for other in others), self.total)
        self.ranks += sum(other.ranks for other in others)

    def compute(self) -> Tensor:
        return self.total * self.ranks / current().world_size


class SharedCache(Total):
    """24: a cache of the class, so that the second metric gets the first one's value."""

    cache = threading.local()

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.cache.value = None

    def compute(self) -> Any:
        if getattr(self.cache, "value", None) is None:
            self.cache.value = self.total
        return self.cache.value


# Wrong in their collectives.


def total_of(batches: list[Any]) -> Tensor:
    return sum((x.double().sum() for (x,) in batches), WIDE)


def as_often_as_rank_0(batches: list[Any]) -> Tensor:
    """14: as many rounds as rank 0 has batches."""
    for _ in range(int(broadcast(torch.tensor(len(batches)), src=0))):
        all_reduce(torch.tensor(1))
    return all_reduce(total_of(batches))


def one_round_a_batch(batches: list[Any]) -> Tensor:
    """14: as many rounds as the rank with the most batches."""
    rounds = int(all_reduce(torch.tensor(len(batches)), "max"))
    padded = [*batches, *[(torch.zeros(0),)] * (rounds - len(batches))]
    return sum((all_reduce(total_of([batch])) for batch in padded), WIDE)


def only_with_data(batches: list[Any]) -> Tensor:
    """15: a rank without data stays away."""
    return all_reduce(total_of(batches)) if batches else WIDE


def as_long_as_the_data(batches: list[Any]) -> Tensor:
    """15: sends float64 or, without data, the default dtype of an empty list."""
    mine = torch.tensor([float(total_of(batches))], dtype=torch.float64 if batches else torch.float32)
    return torch.stack(current().all_gather(mine)).sum()


# Wrong for certain numbers.


class SquaresInInputDtype(Total):
    """19: squares bfloat16 numbers in bfloat16."""

    more: ClassVar = {"sums": (torch.zeros(2, dtype=torch.float64), "sum"), "count": (0, "sum")}

    def update(self, x: Tensor) -> None:
        self.sums += torch.stack([x.double().sum(), (x * x).double().sum()])
        self.count += x.numel()

    def compute(self) -> Tensor:
        mean, square = self.sums / self.count
        return square - mean * mean


class FloatCount(Total):
    """20: counts in float32."""

    more: ClassVar = {"count": (0.0, "sum")}

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.count += x.numel()

    def compute(self) -> Any:
        return self.count


class CancellingVariance(SquaresInInputDtype):
    """21: the difference of two large numbers in float32."""

    more: ClassVar = {"sums": (torch.zeros(2), "sum"), "count": (0, "sum")}

    def update(self, x: Tensor) -> None:
        self.sums += torch.stack([x.sum(), (x * x).sum()])
        self.count += x.numel()


class DropsNan(Total):
    """22: a NaN of one rank vanishes in the sum over ranks."""

    more: ClassVar = {"total": (0.0, lambda rows: rows.nansum(0))}


class Seen(dict[int, Tensor]):
    """A container of a class of the user's, into which the sync does not look."""


class NanWhereItIs(DropsNan):
    """22: only the rank that has the NaN gets it. The sync refuses lists and dicts that differ on an empty rank."""

    def __init__(self) -> None:
        super().__init__()
        self.mine = Seen()

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.mine[len(self.mine)] = x.sum() * 0

    def compute(self) -> Tensor:
        return self.total + sum(self.mine.values(), torch.tensor(0.0))

    def reset(self) -> None:
        super().reset()
        self.mine.clear()


# Wrong on meshes.


class AddsNoise(Total):
    """25: its state is no function of the samples."""

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.total += 1e-9 * torch.rand((), dtype=torch.float64)


class KnowsItsNumber(Total):
    """26: takes the even ranks of a large job for those that need a correction."""

    def compute(self) -> Tensor:
        return self.total + (current().world_size > 4 and current().rank % 2 == 0)


class First(threading.Event):
    """The first number that rank 0 of a world saw."""

    value = 0.0


class AsksRankZero(Total):
    """27: uses what rank 0 has told all ranks, whether its samples count or not."""

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
        self.first().wait(10)
        return self.total + self.first().value


Batches = list[Any]


def of_numbers(change: Callable[[int, Tensor], tuple[Any, ...]], **options: Any) -> SearchStrategy[Batches]:
    """Batches of numbers, of which each is changed by its place."""
    return aggregation(**options).map(lambda batches: [change(place, x) for place, (x,) in enumerate(batches)])


def indexed(**options: Any) -> SearchStrategy[Batches]:
    """Batches with the samples' places in the data set."""

    def named(batches: Batches) -> Batches:
        found: Batches = []
        for (x,) in batches:
            start = sum(len(each["x"]) for each in found)
            found.append({"x": x, "indices": torch.arange(start, start + len(x))})
        return found

    return aggregation(**options).map(named)


SCALED = of_numbers(lambda place, x: (x, 1.0 + place), min_batches=2, low=0.25)
# Their float32 sums are rounded.
ROUNDED = of_numbers(
    lambda place, x: ((x + place / 7 + torch.arange(len(x)) / 9).exp(),), min_batches=8, max_batches=10, min_samples=2
)
# Different numbers from 16 to 20, whose squares bfloat16 rounds by one and more.
FAR = of_numbers(lambda _, x: (16 + x + torch.arange(len(x)) / 7,), min_batches=2, min_samples=4, low=0.0)
THREE, MORE = aggregation(min_batches=3, max_batches=3), aggregation(min_batches=4, max_batches=6)
ABOVE, FOUR = aggregation(low=0.25), aggregation(low=0.25, min_batches=4)
TWO = aggregation(min_batches=2)

MUTANTS = [
    Specimen("mean-of-ranks", MeanOfRanks, aggregation(min_batches=2, low=0.25), laws.SINGLE_IS_SHARDED),
    Specimen("rank-in-the-value", RankInTheValue, TWO, laws.RANKS_AGREE),
    Specimen("highest-from-zero", HighestFromZero, aggregation(high=-0.25), laws.EMPTY_RANK_IS_NEUTRAL),
    Specimen("content-of-empty-batch", ContentOfEmptyBatch, TWO, laws.EMPTY_BATCH_IS_NEUTRAL),
    Specimen("forgets-weights", ForgetsWeights, TWO, laws.ASSOCIATIVE),
    Specimen("last-scale", LastScale, SCALED, laws.RANK_ORDER),
    Specimen("tour", Tour, aggregation(min_batches=2, min_samples=2), laws.SAMPLE_ORDER, worlds=(2,)),
    Specimen("total-of-a-batch", TotalOfABatch, ABOVE, laws.BATCH_SPLIT),
    Specimen("float-total", FloatTotal, ROUNDED, laws.WORLD_SIZE, laws.DEFAULT | laws.WORLD_SIZE),
    Specimen(
        "counts-padding", CountsPadding, indexed(low=0.25), laws.PADDING_REMOVED, laws.DEFAULT | laws.PADDING_REMOVED
    ),
    Specimen("counts-looks", CountsLooks, TWO, laws.SYNC_IS_IDEMPOTENT),
    Specimen("never-computes-again", NeverComputesAgain, ABOVE, laws.OBSERVATION),
    Specimen("divides-in-place", DividesInPlace, ABOVE, laws.OBSERVATION),
    Specimen("changes-local-state", ChangesLocalState, TWO, laws.STATE_RESTORED),
    Specimen("reset-forgets-one", ResetForgetsOne, TWO, laws.RESET_IS_NEW),
    Specimen("checkpoint-lacks-one", CheckpointLacksOne, ABOVE, laws.ROUND_TRIP),
    Specimen("pickle-lacks-one", PickleLacksOne, ABOVE, laws.ROUND_TRIP),
    Specimen("wider-after-sync", WiderAfterSync, TWO, laws.DTYPE_KEPT),
    Specimen("asks-the-world", AsksTheWorld, ABOVE, laws.SUBGROUP),
    Specimen("shared-cache", SharedCache, FOUR, laws.COLLECTION),
    Specimen("as-often-as-rank-0", function(as_often_as_rank_0), THREE, laws.SAME_SEQUENCE),
    Specimen("one-round-a-batch", function(one_round_a_batch), MORE, laws.SAME_SEQUENCE),
    Specimen("only-with-data", function(only_with_data), TWO, laws.NO_HANG),
    Specimen("as-long-as-the-data", function(as_long_as_the_data), TWO, laws.NO_HANG),
    Specimen("squares", SquaresInInputDtype, FAR, laws.LOW_PRECISION, laws.DEFAULT | laws.LOW_PRECISION),
    Specimen("float-count", FloatCount, TWO, laws.LARGE_COUNTS, laws.DEFAULT | laws.LARGE_COUNTS),
    Specimen("cancelling-variance", CancellingVariance, TWO, laws.SHIFT, laws.DEFAULT | laws.SHIFT),
    Specimen("drops-nan", DropsNan, TWO, laws.NAN_EVERYWHERE),
    Specimen("nan-where-it-is", NanWhereItIs, TWO, laws.NAN_EVERYWHERE),
    Specimen("adds-noise", AddsNoise, TWO, laws.REPLICA_NEUTRAL, laws.LAYOUTS),
    Specimen("knows-its-number", KnowsItsNumber, TWO, laws.AXIS_ORDER, laws.LAYOUTS),
    Specimen("asks-rank-zero", AsksRankZero, FOUR, laws.OWNER_ONLY, laws.LAYOUTS),
]
