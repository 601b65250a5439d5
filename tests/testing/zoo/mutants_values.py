"""Mutants whose value is wrong under some sharding: laws 1 to 10."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from distmetrics import current
from distmetrics.testing import laws
from distmetrics.testing.inputs import aggregation
from tests.testing.zoo.base import Mergeable, Specimen, Total


class MeanOfRanks(Total):
    """Law 1: averages the ranks' totals, as ``sync_dist=True`` does by default."""

    ranks: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("ranks", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.ranks = torch.tensor(1)

    def compute(self) -> Tensor:
        return self.total / self.ranks


class RankInTheValue(Total):
    """Law 2: all ranks but the first add something of their own."""

    def compute(self) -> Tensor:
        return self.total + (current().rank > 0)


class HighestFromZero(Mergeable):
    """Law 3: a rank without data holds 0, which is higher than any negative number."""

    def __init__(self) -> None:
        self.high: Tensor | None = None

    def update(self, x: Tensor) -> None:
        self.high = x.max() if self.high is None else torch.maximum(self.high, x.max())

    def merge_state(self, others: Sequence[HighestFromZero]) -> None:
        for other in others:
            self.high = torch.maximum(self.compute(), other.compute())

    def compute(self) -> Tensor:
        return torch.tensor(0.0) if self.high is None else self.high

    def reset(self) -> None:
        self.high = None


class ContentOfEmptyBatch(Total):
    """Law 4: the mean of a batch times its size, NaN without samples."""

    def update(self, x: Tensor) -> None:
        self.total += x.double().mean() * x.numel()


class ForgetsWeights(Mergeable):
    """Law 5: a merged mean is right, but has the weight of one of its parts when it is merged again."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.mean, self.count = torch.tensor(0.0, dtype=torch.float64), 0

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
    """Law 6: totals in the unit that the last rank was told."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("scale", torch.tensor(1.0), dist_reduce_fx=lambda rows: rows[-1])

    def update(self, x: Tensor, scale: float) -> None:  # type: ignore[override]
        super().update(x)
        if x.numel():
            self.scale = torch.tensor(scale)

    def compute(self) -> Tensor:
        return self.total * self.scale


@st.composite
def scaled_batches(draw: Any) -> list[tuple[Any, ...]]:
    batches = draw(aggregation(min_batches=2, low=0.25))
    return [(*batch, 1.0 + index) for index, batch in enumerate(batches)]


class Tour(Total):
    """Law 7: the length of the way from sample to sample and back to the first; two ranks may change places."""

    places: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("places", [], dist_reduce_fx="cat")

    def update(self, x: Tensor) -> None:
        self.places.append(x)

    def compute(self) -> Tensor:
        places = torch.cat(self.places) if isinstance(self.places, list) else self.places
        return (places - places.roll(1)).abs().sum()


class TotalOfABatch(Total):
    """Law 8: divides by the number of batches."""

    batches: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("batches", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.batches += bool(x.numel())

    def compute(self) -> Tensor:
        return self.total / self.batches


class FloatTotal(Total):
    """Law 9: float32 totals, whose last bit depends on the order."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, x: Tensor) -> None:
        self.total += x.sum()


def rounded() -> SearchStrategy[list[tuple[Any, ...]]]:
    """Batches of numbers whose float32 sums are rounded."""

    def apart(batches: list[tuple[Tensor]]) -> list[tuple[Any, ...]]:
        return [((x + index / 7 + torch.arange(len(x)) / 9).exp(),) for index, (x,) in enumerate(batches)]

    return aggregation(min_batches=8, max_batches=10, min_samples=2).map(apart)


class CountsPadding(Total):
    """Law 10: is told which samples they are, and does not look."""

    def update(self, x: Tensor, indices: Tensor) -> None:  # type: ignore[override]
        super().update(x)


def indexed(**options: Any) -> SearchStrategy[list[dict[str, Any]]]:
    """Batches with the samples' places in the data set."""

    def named(batches: list[tuple[Tensor]]) -> list[dict[str, Any]]:
        found, start = [], 0
        for (x,) in batches:
            found.append({"x": x, "indices": torch.arange(start, start + len(x))})
            start += len(x)
        return found

    return aggregation(**options).map(named)


MUTANTS = [
    Specimen("mean-of-ranks", MeanOfRanks, aggregation(min_batches=2, low=0.25), laws.SINGLE_IS_SHARDED),
    Specimen("rank-in-the-value", RankInTheValue, breaks=laws.RANKS_AGREE),
    Specimen("highest-from-zero", HighestFromZero, aggregation(high=-0.25), laws.EMPTY_RANK_IS_NEUTRAL),
    Specimen("content-of-empty-batch", ContentOfEmptyBatch, breaks=laws.EMPTY_BATCH_IS_NEUTRAL),
    Specimen("forgets-weights", ForgetsWeights, breaks=laws.ASSOCIATIVE),
    Specimen("last-scale", LastScale, scaled_batches(), laws.RANK_ORDER),
    Specimen("tour", Tour, aggregation(min_batches=2, min_samples=2), laws.SAMPLE_ORDER, worlds=(2,)),
    Specimen("total-of-a-batch", TotalOfABatch, aggregation(low=0.25), laws.BATCH_SPLIT),
    Specimen(
        "float-total",
        FloatTotal,
        rounded(),
        laws.WORLD_SIZE,
        laws.DEFAULT | laws.WORLD_SIZE,
    ),
    Specimen(
        "counts-padding",
        CountsPadding,
        indexed(low=0.25),
        laws.PADDING_REMOVED,
        laws.DEFAULT | laws.PADDING_REMOVED,
    ),
]
