"""Metrics that break one law each."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from hypothesis.strategies import SearchStrategy
from torch import Tensor
from torchmetrics import Metric

from distmetrics import all_reduce, broadcast, current
from distmetrics.testing import function, laws
from distmetrics.testing.inputs import aggregation, multiclass
from tests.testing.zoo.base import WIDE, Mergeable, Specimen, Total, changed

# What takes more than an expression.


class HighestFromZero(Mergeable):
    """A rank without data holds 0, which is higher than any negative number."""

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


class Peak(Metric):
    """The highest number; a rank that saw only an empty batch sends 0, which is higher than any negative number."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("peak", torch.tensor(0.0), dist_reduce_fx="max")
        self.add_state("new", torch.tensor(True), dist_reduce_fx="min")

    def update(self, x: Tensor) -> None:
        if x.numel():
            self.peak = x.max() if self.new else torch.maximum(self.peak, x.max())
            self.new = torch.tensor(False)

    def compute(self) -> Any:
        return self.peak


class WorstRecall(Metric):
    """The recall of the worst class; how many classes there are is each rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("hits", [], dist_reduce_fx="cat")
        self.add_state("labels", [], dist_reduce_fx="cat")
        self.classes = 0

    def update(self, scores: Tensor, y: Tensor) -> None:
        self.classes = max(self.classes, *(y + 1).tolist(), 0)
        self.hits.append((scores.argmax(1) == y).float())
        self.labels.append(y)

    def compute(self) -> Tensor:
        hits, labels = (torch.cat(x) if isinstance(x, list) else x for x in (self.hits, self.labels))
        of_each = [hits[labels == c].mean() for c in range(self.classes) if (labels == c).any()]
        return torch.stack([*of_each, torch.tensor(1.0)]).min()


class ForgetsWeights(Mergeable):
    """A merged mean is right, but has the weight of one of its parts when it is merged again."""

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


class AsksTheWorld(Mergeable):
    """Takes the world's size for that of the group that was synced."""

    def reset(self) -> None:
        self.total, self.ranks = WIDE, 1

    def update(self, x: Tensor) -> None:
        self.total = self.total + x.double().sum()

    def merge_state(self, others: Sequence[AsksTheWorld]) -> None:
        self.total = sum((other.total for other in others), self.total)
        self.ranks += sum(other.ranks for other in others)

    def compute(self) -> Tensor:
        return self.total * self.ranks / current().world_size


class Remembers(Total):
    """Has an attribute that is no state."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: list[Any] = []

    def forget(self, *x: Tensor) -> None:
        self.memory.clear()
        super().update(*x) if x else super().reset()


class CountsLooks(Remembers):
    """The second look gets another value than the first."""

    update = Remembers.forget

    def compute(self) -> Tensor:
        self.memory.append(0)
        return self.total + len(self.memory)


class NeverComputesAgain(Remembers):
    """Keeps the first value until it is reset."""

    reset = Remembers.forget

    def compute(self) -> Any:
        self.memory.append(self.total)
        return self.memory[0]


class ChangesLocalState(Remembers):
    """Computing changes a local state behind the sync's back."""

    more: ClassVar = {"looks": (0, "sum")}

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.memory[:] = [self.looks]

    def compute(self) -> Tensor:
        for looks in self.memory:
            looks += 1
        return self.total


class ResetForgetsOne(Total):
    """One of two states survives ``reset``."""

    more: ClassVar = {"high": (-torch.inf, "max")}

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.high = torch.cat([self.high.reshape(1), x]).max()

    def compute(self) -> tuple[Any, ...]:
        return self.total, self.high

    def reset(self) -> None:
        high = self.high
        super().reset()
        self.high = high


class CheckpointLacksOne(Total):
    """``state_dict`` leaves the total out."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        found = super().state_dict(*args, **kwargs)
        found.pop(f"{kwargs.get('prefix', '')}total", None)
        return found

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict=False, assign=assign)


class PickleLacksOne(Total):
    """The pickled metric has no data."""

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "total": WIDE.clone()}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other = type(self).__new__(type(self))
        other.__setstate__(copy.deepcopy(super().__getstate__(), memo))
        return other


class SharedCache(Total):
    """A cache of the class, so that the second metric gets the first one's value."""

    cache = threading.local()

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.cache.value = None

    def compute(self) -> Any:
        if getattr(self.cache, "value", None) is None:
            self.cache.value = self.total
        return self.cache.value


class Seen(dict[int, Tensor]):
    """A container of a class of the user's, into which the sync does not look."""


class NanWhereItIs(Total):
    """Only the rank that has the NaN gets it. The sync refuses lists and dicts that differ on an empty rank."""

    more: ClassVar = {"total": (0.0, lambda rows: rows.nansum(0))}

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


class First(threading.Event):
    """The first number that rank 0 of a world saw."""

    value = 0.0


class AsksRankZero(Total):
    """Uses what rank 0 has told all ranks, whether its samples count or not."""

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


def total_of(batches: list[Any]) -> Tensor:
    return sum((x.double().sum() for (x,) in batches), WIDE)


def as_often_as_rank_0(batches: list[Any]) -> Tensor:
    for _ in range(int(broadcast(torch.tensor(len(batches)), src=0))):
        all_reduce(torch.tensor(1))
    return all_reduce(total_of(batches))


def one_round_a_batch(batches: list[Any]) -> Tensor:
    """As many rounds as the rank with the most batches."""
    rounds = int(all_reduce(torch.tensor(len(batches)), "max"))
    padded = [*batches, *[(torch.zeros(0),)] * (rounds - len(batches))]
    return sum((all_reduce(total_of([batch])) for batch in padded), WIDE)


def as_long_as_the_data(batches: list[Any]) -> Tensor:
    """Sends float64 or, without data, the default dtype of an empty list."""
    mine = torch.tensor([float(total_of(batches))], dtype=torch.float64 if batches else torch.float32)
    return torch.stack(current().all_gather(mine)).sum()


def tour(metric: Any) -> Tensor:
    """The length of the way from sample to sample and back to the first; two ranks may change places."""
    places = torch.cat(metric.places) if isinstance(metric.places, list) else metric.places
    return (places - places.roll(1)).abs().sum()


def once(metric: Any, x: Tensor) -> None:
    Total.update(metric, x)
    if x.numel():
        metric.ranks = torch.tensor(1)


def last_scale(metric: Any, x: Tensor, scale: float) -> None:
    Total.update(metric, x)
    if x.numel():
        metric.scale = torch.tensor(scale)


def adds(amount: Callable[[Tensor], Any], to: str = "total") -> Callable[..., None]:
    """Return an ``update`` that adds something of a batch to a state, and the samples' sum to the total."""

    def update(self: Any, x: Tensor) -> None:
        if to != "total":
            Total.update(self, x)
        setattr(self, to, getattr(self, to) + amount(x))

    return update


def variance(metric: Any) -> Tensor:
    mean, square = metric.sums[:2] / metric.sums[2]
    return square - mean * mean


def sums(x: Tensor) -> Tensor:
    return torch.stack([x.double().sum(), (x * x).double().sum(), torch.tensor(float(x.numel())).double()])


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
TWO, TWO_ABOVE = aggregation(min_batches=2), aggregation(min_batches=2, low=0.25)
FLOAT, SUMS = (0.0, "sum"), torch.zeros(3)

# Averages the ranks' totals, as ``sync_dist=True`` does by default.
MEAN_OF_RANKS = changed({"ranks": (0, "sum")}, update=once, compute=lambda self: self.total / self.ranks)
RANK_IN_VALUE = changed(compute=lambda self: self.total + (current().rank > 0))
# NaN without samples.
MEAN_TIMES_SIZE = changed(update=adds(lambda x: x.double().mean() * x.numel()))
LAST_SCALE = changed(
    {"scale": (1.0, lambda rows: rows[-1])}, update=last_scale, compute=lambda self: self.total * self.scale
)
TOUR = changed({"places": ([], "cat")}, update=lambda self, x: self.places.append(x), compute=tour)
TOTAL_OF_A_BATCH = changed(
    {"batches": FLOAT},
    update=adds(lambda x: bool(x.numel()), "batches"),
    compute=lambda self: self.total / self.batches,
)
FLOAT_TOTAL = changed({"total": FLOAT})
COUNTS_PADDING = changed(update=lambda self, x, indices: Total.update(self, x))
DIVIDES_IN_PLACE = changed(compute=lambda self: self.total.div_(2))
WIDER_AFTER_SYNC = changed({"total": (0.0, lambda rows: rows.double().sum(0))})
# Squares bfloat16 numbers in bfloat16.
SQUARES = changed({"sums": (SUMS.double(), "sum")}, update=adds(sums, "sums"), compute=variance)
FLOAT_COUNT = changed({"count": FLOAT}, update=adds(Tensor.numel, "count"), compute=lambda self: self.count)
# The difference of two large numbers in float32.
CANCELS = changed({"sums": (SUMS, "sum")}, update=adds(lambda x: sums(x).float(), "sums"), compute=variance)
# A NaN of one rank vanishes in the sum over ranks.
DROPS_NAN = changed({"total": (0.0, lambda rows: rows.nansum(0))})
ADDS_NOISE = changed(update=adds(lambda x: x.double().sum() + 1e-9 * torch.rand((), dtype=torch.float64)))
# Takes the even ranks of a large job for those that need a correction.
KNOWS_ITS_NUMBER = changed(compute=lambda self: self.total + (current().world_size > 4 and current().rank % 2 == 0))

MUTANTS = [
    Specimen("mean-of-ranks", MEAN_OF_RANKS, TWO_ABOVE, laws.SINGLE_IS_SHARDED),
    Specimen("rank-in-the-value", RANK_IN_VALUE, TWO, laws.RANKS_AGREE),
    Specimen("highest-from-zero", HighestFromZero, aggregation(high=-0.25), laws.EMPTY_RANK_IS_NEUTRAL),
    Specimen("content-of-empty-batch", MEAN_TIMES_SIZE, TWO, laws.EMPTY_BATCH_IS_NEUTRAL),
    Specimen("forgets-weights", ForgetsWeights, TWO, laws.ASSOCIATIVE),
    Specimen("last-scale", LAST_SCALE, SCALED, laws.RANK_ORDER),
    Specimen("tour", TOUR, aggregation(min_batches=2, min_samples=2), laws.SAMPLE_ORDER, worlds=(2,)),
    Specimen("total-of-a-batch", TOTAL_OF_A_BATCH, ABOVE, laws.BATCH_SPLIT),
    Specimen("float-total", FLOAT_TOTAL, ROUNDED, laws.WORLD_SIZE, laws.DEFAULT | laws.WORLD_SIZE),
    Specimen("padding", COUNTS_PADDING, indexed(low=0.25), laws.PADDING_REMOVED, laws.DEFAULT | laws.PADDING_REMOVED),
    Specimen("counts-looks", CountsLooks, TWO, laws.SYNC_IS_IDEMPOTENT),
    Specimen("never-computes-again", NeverComputesAgain, ABOVE, laws.OBSERVATION),
    Specimen("divides-in-place", DIVIDES_IN_PLACE, ABOVE, laws.OBSERVATION),
    Specimen("changes-local-state", ChangesLocalState, TWO, laws.STATE_RESTORED),
    Specimen("reset-forgets-one", ResetForgetsOne, TWO, laws.RESET_IS_NEW),
    Specimen("checkpoint-lacks-one", CheckpointLacksOne, ABOVE, laws.ROUND_TRIP),
    Specimen("pickle-lacks-one", PickleLacksOne, ABOVE, laws.ROUND_TRIP),
    Specimen("wider-after-sync", WIDER_AFTER_SYNC, TWO, laws.DTYPE_KEPT),
    Specimen("asks-the-world", AsksTheWorld, ABOVE, laws.SUBGROUP),
    Specimen("shared-cache", SharedCache, FOUR, laws.COLLECTION),
    Specimen("as-often-as-rank-0", function(as_often_as_rank_0), THREE, laws.SAME_SEQUENCE),
    Specimen("one-round-a-batch", function(one_round_a_batch), MORE, laws.SAME_SEQUENCE),
    Specimen("only-with-data", function(lambda mine: all_reduce(total_of(mine)) if mine else WIDE), TWO, laws.NO_HANG),
    Specimen("as-long-as-the-data", function(as_long_as_the_data), TWO, laws.NO_HANG),
    Specimen("squares", SQUARES, FAR, laws.LOW_PRECISION, laws.DEFAULT | laws.LOW_PRECISION),
    Specimen("float-count", FLOAT_COUNT, TWO, laws.LARGE_COUNTS, laws.DEFAULT | laws.LARGE_COUNTS),
    Specimen("cancelling-variance", CANCELS, TWO, laws.SHIFT, laws.DEFAULT | laws.SHIFT),
    Specimen("drops-nan", DROPS_NAN, TWO, laws.NAN_EVERYWHERE),
    Specimen("nan-where-it-is", NanWhereItIs, TWO, laws.NAN_EVERYWHERE),
    Specimen("adds-noise", ADDS_NOISE, TWO, laws.REPLICA_NEUTRAL, laws.LAYOUTS),
    Specimen("knows-its-number", KNOWS_ITS_NUMBER, TWO, laws.AXIS_ORDER, laws.LAYOUTS),
    Specimen("asks-rank-zero", AsksRankZero, FOUR, laws.OWNER_ONLY, laws.LAYOUTS),
]
# Each breaks several laws, and shows it where a rank has few samples or none.
SMALL = [
    (Peak, aggregation(), laws.SINGLE_IS_SHARDED),
    (Peak, aggregation(), laws.EMPTY_BATCH_IS_NEUTRAL),
    (WorstRecall, multiclass(), laws.SINGLE_IS_SHARDED),
    (WorstRecall, multiclass(), laws.RANKS_AGREE),
]
