"""What the checks of laws share: comparisons of runs, and other ways to deal a trial's batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from distmetrics.testing import scenarios
from distmetrics.testing.batches import Batch, Shards, count, take
from distmetrics.testing.equality import BITWISE, Equality, brief
from distmetrics.testing.scenarios import Scenario
from distmetrics.testing.shards import in_runs
from distmetrics.testing.trial import LawBroken, NotJudged, RankResult, Trial


def compare(
    expected: Any, got: Sequence[Any], equality: Equality, shards: Shards, note: str = ""
) -> None:
    """Compare every rank's value with one that is expected."""
    for rank, value in enumerate(got):
        if difference := equality.difference(expected, value):
            detail = f"rank {rank}: {difference}{note}"
            raise LawBroken(brief(expected), tuple(map(brief, got)), detail, shards)


def same_value(
    trial: Trial,
    shards: Shards,
    others: Iterable[Shards],
    note: str,
    equality: Equality | None = None,
    scenario: Scenario = scenarios.plain,
) -> None:
    """Compare rank 0's value on some shards with its values on others, or in another scenario."""
    expected = trial.values(shards)[0]
    for other in others:
        got = trial.values(other, scenario)[:1]
        compare(expected, got, equality or trial.loosely, other, note)


def same_on_each_rank(trial: Trial, scenario: Scenario) -> None:
    """Run a scenario that returns pairs of what must be equal, and compare them on every rank."""
    for rank, pairs in enumerate(trial.values(trial.dense, scenario)):
        for what, expected, got, bitwise in pairs:
            equality = BITWISE if bitwise else trial.loosely
            if difference := equality.difference(expected, got):
                detail = f"{what}, on rank {rank}: {difference}"
                raise LawBroken(brief(expected), (brief(got),), detail, trial.dense)


def no_error(expected: str, results: Sequence[RankResult], shards: Shards) -> None:
    """Say that the law is broken if a rank raised."""
    for rank, result in enumerate(results):
        if result.kind == "raised":
            detail = f"rank {rank} raises {result.text}"
            raise LawBroken(expected, tuple(map(str, results)), detail, shards)


def parts(trial: Trial, world_size: int) -> Shards:
    """Deal all batches to so many ranks, each with some; batches are cut if they are too few."""
    batches = trial.pooled
    if len(batches) < world_size:
        batches = tuple(piece for batch in batches for piece in pieces(batch, world_size))
    if len(batches) < world_size:
        raise NotJudged(f"there are not enough samples for {world_size} ranks")
    return in_runs(batches, world_size)


def pieces(batch: Batch, number: int) -> list[Batch]:
    """Cut a batch into at most so many parts, none empty."""
    rows = count(batch) or 1
    if rows < 2:
        return [batch]
    number = min(number, rows)
    return [take(batch, range(i * rows // number, (i + 1) * rows // number)) for i in range(number)]
