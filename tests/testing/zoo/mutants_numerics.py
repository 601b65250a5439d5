"""Mutants that are wrong for certain numbers, or in their collectives: laws 14, 15 and 19 to 22."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from distmetrics import all_reduce, broadcast, current
from distmetrics.testing import function, laws
from distmetrics.testing.inputs import aggregation
from tests.testing.zoo.base import Specimen, Total


def total_of(batches: list[Any]) -> Tensor:
    return sum((x.double().sum() for (x,) in batches), torch.tensor(0.0, dtype=torch.float64))


def as_often_as_rank_0(batches: list[Any]) -> Tensor:
    """Law 14: as many rounds as rank 0 has batches."""
    rounds = int(broadcast(torch.tensor(len(batches)), src=0))
    for _ in range(rounds):
        all_reduce(torch.tensor(1))
    return all_reduce(total_of(batches))


def one_round_a_batch(batches: list[Any]) -> Tensor:
    """Law 14: as many rounds as the rank with the most batches."""
    rounds = int(all_reduce(torch.tensor(len(batches)), "max"))
    padded = [*batches, *[(torch.zeros(0),)] * (rounds - len(batches))]
    return sum((all_reduce(total_of([batch])) for batch in padded), torch.tensor(0.0, dtype=torch.float64))


def only_with_data(batches: list[Any]) -> Tensor:
    """Law 15: a rank without data stays away."""
    return all_reduce(total_of(batches)) if batches else torch.tensor(0.0, dtype=torch.float64)


def as_long_as_the_data(batches: list[Any]) -> Tensor:
    """Law 15: sends float32 or, without data, the default dtype of an empty list."""
    mine = torch.tensor([float(total_of(batches))], dtype=torch.float64 if batches else torch.float32)
    rows = torch.stack(current().all_gather(mine))
    return rows.sum()


class SquaresInInputDtype(Total):
    """Law 19: squares bfloat16 numbers in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(2, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, x: Tensor) -> None:
        self.sums += torch.stack([x.double().sum(), (x * x).double().sum()])
        self.count += x.numel()

    def compute(self) -> Tensor:
        mean, square = self.sums / self.count
        return square - mean * mean


def far_from_zero() -> SearchStrategy[list[tuple[Any, ...]]]:
    """Batches of different numbers from 16 to 20, whose squares bfloat16 rounds by one and more."""

    def apart(batches: list[tuple[Tensor]]) -> list[tuple[Any, ...]]:
        return [(16 + x + torch.arange(len(x)) / 7,) for (x,) in batches]

    return aggregation(min_batches=2, min_samples=4, low=0.0).map(apart)


class FloatCount(Total):
    """Law 20: counts in float32."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("count", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.count += x.numel()

    def compute(self) -> Tensor:
        return self.count


class CancellingVariance(SquaresInInputDtype):
    """Law 21: the difference of two large numbers in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(2), dist_reduce_fx="sum")

    def update(self, x: Tensor) -> None:
        self.sums += torch.stack([x.sum(), (x * x).sum()])
        self.count += x.numel()


class DropsNan(Total):
    """Law 22: a NaN of one rank vanishes in the sum over ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx=lambda rows: rows.nansum(0))

    def update(self, x: Tensor) -> None:
        self.total += x.sum()


class Seen(dict[int, Tensor]):
    """A container of a class of the user's, into which the sync does not look."""


class NanWhereItIs(DropsNan):
    """Law 22: only the rank that has the NaN gets it.

    The sync refuses lists and dicts that differ where a rank has no data.
    """

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


MUTANTS = [
    Specimen(
        "as-often-as-rank-0",
        function(as_often_as_rank_0),
        aggregation(min_batches=3, max_batches=3),
        laws.SAME_SEQUENCE,
    ),
    Specimen(
        "one-round-a-batch", function(one_round_a_batch), aggregation(min_batches=4, max_batches=6), laws.SAME_SEQUENCE
    ),
    Specimen("only-with-data", function(only_with_data), breaks=laws.NO_HANG),
    Specimen("as-long-as-the-data", function(as_long_as_the_data), breaks=laws.NO_HANG),
    Specimen(
        "squares-in-input-dtype",
        SquaresInInputDtype,
        far_from_zero(),
        laws.LOW_PRECISION,
        laws.DEFAULT | laws.LOW_PRECISION,
    ),
    Specimen("float-count", FloatCount, breaks=laws.LARGE_COUNTS, judged=laws.DEFAULT | laws.LARGE_COUNTS),
    Specimen("cancelling-variance", CancellingVariance, breaks=laws.SHIFT, judged=laws.DEFAULT | laws.SHIFT),
    Specimen("drops-nan", DropsNan, breaks=laws.NAN_EVERYWHERE),
    Specimen("nan-where-it-is", NanWhereItIs, breaks=laws.NAN_EVERYWHERE),
]
