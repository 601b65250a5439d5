"""Compute groups that ranks have formed differently: the value of metrics kept apart, or an error on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torchmetrics as tm
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.classification import BinaryF1Score

from distmetrics import StateError, sync_and_compute
from distmetrics.testing import outcomes, run
from tests.backends import same_error
from tests.metrics.samples import states

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")  # no rank has data

Batch = tuple[list[float], list[int]]
Epoch = list[Batch]
LIMITS = {"high": 0.7, "low": 0.3, "middle": 0.5}
# Between these two no score lies in the first batch of rank 0, and some do in that of rank 1.
MERGED: list[Epoch] = [[([0.9, 0.1], [1, 0]), ([0.6, 0.9], [1, 1])]]
APART: list[Epoch] = [[([0.6, 0.4], [1, 0]), ([0.9, 0.1], [0, 1])]]
NOTHING: list[Epoch] = [[]]


def update(metric: Any, batches: Sequence[Batch]) -> Any:
    for scores, labels in batches:
        metric.update(torch.tensor(scores), torch.tensor(labels))
    return metric


def scored(epochs: Sequence[Epoch], groups: Any = True, call: bool = False) -> tm.MetricCollection:
    """Return F1 scores of several thresholds that have seen these epochs, and were reset in between."""
    metrics = tm.MetricCollection({name: BinaryF1Score(limit) for name, limit in LIMITS.items()}, compute_groups=groups)
    for epoch in epochs:
        metrics.reset()
        for batch in epoch:
            metrics(*map(torch.tensor, batch)) if call else update(metrics, [batch])
    return metrics


def numbers(values: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def expected(per_rank: Sequence[Sequence[Epoch]]) -> dict[str, float] | None:
    """Return the values of all data, None where a rank has lost a state; what all merge alike is upstream's fault."""
    formed = set()
    for epochs in per_rank:
        groups = scored(epochs).compute_groups.values()
        if epochs[-1]:
            formed.add(tuple(sorted((name, group[0]) for group in groups for name in group)))
    if len(formed) > 1:
        return None
    whole = [batch for epochs in per_rank for batch in epochs[-1]]
    shown = dict(formed.pop()) if formed else {name: name for name in LIMITS}
    return numbers({name: update(BinaryF1Score(LIMITS[shown[name]]), whole).compute() for name in LIMITS})


def verdict(comm: Any, per_rank: Sequence[Sequence[Epoch]]) -> Any:
    metrics = scored(per_rank[comm.rank])
    before = states(metrics)
    try:
        return numbers(sync_and_compute(metrics, comm=comm))
    except StateError as error:
        return str(error)
    finally:
        assert states(metrics) == before


def batches() -> st.SearchStrategy[Batch]:
    scores = st.lists(st.sampled_from([0.1, 0.4, 0.6, 0.9]), min_size=1, max_size=3)
    return scores.flatmap(
        lambda x: st.tuples(st.just(x), st.lists(st.integers(0, 1), min_size=len(x), max_size=len(x)))
    )


epochs = st.lists(st.lists(batches(), max_size=2), min_size=1, max_size=2)


@settings(max_examples=12)
@given(per_rank=st.integers(2, 3).flatmap(lambda count: st.lists(epochs, min_size=count, max_size=count)))
@example(per_rank=[MERGED, APART])
@example(per_rank=[MERGED, MERGED])
@example(per_rank=[MERGED + NOTHING, APART])  # no data, so nothing is lost
@example(per_rank=[MERGED + APART, APART, NOTHING])  # the groups outlive the reset
def test_the_value_of_all_data_or_an_error_on_every_rank(per_rank: list[list[Epoch]]) -> None:
    right, (first, *others) = expected(per_rank), run(len(per_rank), verdict, per_rank)
    assert all(repr(each) == repr(first) for each in others)
    if right is None:
        assert "compute_groups=False" in first
    else:
        assert first == pytest.approx(right)


def test_the_text() -> None:
    """Pinned: who has lost what, and the argument that helps."""

    def work(comm: Any) -> Any:
        return sync_and_compute(scored([MERGED, APART, MERGED][comm.rank]), comm=comm, name="val")

    error = same_error(outcomes(3, work), StateError)
    assert error.peers == (0, 2)
    assert error.what == (
        'sync of metrics "val": on some ranks low shows the state of another metric, and has lost its own; '
        "other ranks with data differ"
    )
    lost = [line.partition("  ")[0] for _, line in sorted(error.per_rank.items())]
    assert lost == ["low has the state of high", "low has the state of no other", "low has the state of high"]
    assert str(error).endswith("Do:     make the collection with compute_groups=False.")


@pytest.mark.parametrize("how", ["called", "without groups", "looked at"])
def test_a_rank_whose_members_are_apart_is_refused(how: str) -> None:
    """One that only calls the collection, has switched groups off, or has looked at the members, which copies them."""

    def work(comm: Any) -> Any:
        is_odd = comm.rank == 1
        metrics = scored(
            [MERGED, APART][comm.rank], not (is_odd and how == "without groups"), how == "called" and is_odd
        )
        if how == "looked at" and comm.rank == 0:
            assert metrics["low"].tp is not metrics["high"].tp
        return sync_and_compute(metrics, comm=comm)

    same_error(outcomes(2, work), StateError)


def test_members_that_were_updated_one_by_one_are_apart() -> None:
    """Their states stay their own, however often they are synced."""

    def work(comm: Any) -> Any:
        metrics = scored([*MERGED, []])
        for metric in metrics.values():
            update(metric, APART[0])
        before = states(metrics)
        twice = [numbers(sync_and_compute(metrics, comm=comm)) for _ in range(2)]
        assert states(metrics) == before
        return twice

    right = numbers(scored([APART[0] * 2], groups=False).compute())
    assert run(2, work) == [[pytest.approx(right)] * 2] * 2
