"""Lists of tensors: they survive the way as one tensor, and what a block does to them is not done to a rank's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics import SumMetric
from torchmetrics.retrieval import RetrievalMAP

from distmetrics import synced
from distmetrics.metrics.metric_set import cut, join
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator
from tests.metrics.samples import Items

shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=6)
alike = st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.lists(st.integers(0, 3), max_size=2)).map(
    lambda made: [(rows, *made[1]) for rows in made[0]]
)


@settings(max_examples=50)
@given(shapes | alike | st.integers(1, 9).map(lambda count: [()] * count))
def test_items_come_back(shapes: list[tuple[int, ...]]) -> None:
    """Numbers, rows of one width, anything; items without elements too; order and values kept."""
    items = [torch.arange(torch.Size(shape).numel()).reshape(shape) + 10 * i for i, shape in enumerate(shapes)]
    back = cut(*join(items))
    assert [item.shape for item in back] == [item.shape for item in items]
    assert all(torch.equal(new, old) for new, old in zip(back, items, strict=True))


def kept(comm: Any, lengths: list[list[int]]) -> tuple[list[list[Tensor]], set[int]]:
    """Items of syncs one after the other, of other numbers each, held until the last is done; and their rounds."""
    found, rounds = [], set()
    metric, other = Items(), SumMetric()  # states of fixed size beside the list: then memory is kept
    other.update(1.0)
    for step, per_rank in enumerate(lengths):
        metric.reset()
        for place in range(3):
            metric.update(torch.full((per_rank[comm.rank],), 100.0 * step + 10 * comm.rank + place))
        record = RecordingCommunicator(comm)
        with synced([metric, other], comm=record):
            found.append([*metric.items])
        rounds.add(len(record.calls))
    return found, rounds


LENGTHS = [  # of both ranks' items in each sync, and the rounds that it takes
    ([[5, 5], [5, 2000], [2000, 5], [5, 2000], [2000, 2000], [2000, 5]], {1}),
    ([[5, 3000], [3000, 5], [5, 3000], [3000, 3000], [3000, 3000]], {2}),
]


def all_kept(comm: Any) -> Any:
    return [kept(comm, lengths) for lengths, _ in LENGTHS]


@pytest.mark.gloo
def test_items_that_a_sync_gave_out_are_nobody_else_s() -> None:
    """They are not overwritten by the next one, which receives into the same memory."""
    for ranks in run(2, all_kept, backend="gloo"):
        for (lengths, wanted_rounds), (found, rounds) in zip(LENGTHS, ranks, strict=True):
            assert rounds == wanted_rounds
            for step, items in enumerate(found):
                whole = [(rank, place) for rank in range(2) for place in range(3)]
                wanted = [torch.full((lengths[step][r],), 100.0 * step + 10 * r + place) for r, place in whole]
                assert all(map(torch.equal, items, wanted))


@pytest.mark.parametrize("how", [Tensor.zero_, lambda item: item.resize_(7)])
def test_what_a_block_does_to_items_is_undone(how: Any) -> None:
    """Local items are the same objects with the same numbers, whoever has changed what the block held."""

    def work(comm: Any) -> None:
        metric = RetrievalMAP()
        for _ in range(2 + comm.rank):
            metric.update(torch.rand(3), torch.tensor([0, 1, 1]), indexes=torch.zeros(3, dtype=torch.long))
        local, copies = [*metric.preds], [item.clone() for item in metric.preds]
        with synced(metric, comm=comm):
            for item in metric.preds:
                how(item)
        assert all(map(torch.equal, metric.preds, copies))
        assert [*map(id, metric.preds)] == [*map(id, local)]

    run(2, work)
