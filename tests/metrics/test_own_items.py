"""What computing does to the items of a list that holds all ranks' is not done to this rank's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import SumMetric
from torchmetrics.retrieval import RetrievalMAP

from distmetrics import synced
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator
from tests.metrics.samples import Items


def kept(comm: Any, lengths: list[list[int]]) -> list[tuple[list[Tensor], int]]:
    """Items and rounds of syncs one after the other, of other numbers each, held until the last is done."""
    found = []
    metric, other = Items(), SumMetric()  # states of fixed size beside the list: then memory is kept
    other.update(1.0)
    for step, per_rank in enumerate(lengths):
        metric.reset()
        for place in range(3):
            metric.update(torch.full((per_rank[comm.rank],), 100.0 * step + 10 * comm.rank + place))
        record = RecordingCommunicator(comm)
        who = record if step in (0, len(lengths) - 1) else comm
        with synced([metric, other], comm=who):
            found.append(([*metric.items], record))
    return [(items, len(record.calls)) for items, record in found]


LENGTHS = [  # of both ranks' items in each sync, and the rounds that it takes
    ([[5, 5]] * 5, 1),
    ([[5, 2000], [2000, 5], [5, 2000], [2000, 2000], [2000, 5]], 1),
    ([[5, 3000], [3000, 5], [5, 3000], [5, 3000], [3000, 5]], 2),
    ([[3000, 3000]] * 5, 2),
]


def all_kept(comm: Any) -> Any:
    return [kept(comm, lengths) for lengths, _ in LENGTHS]


@pytest.mark.gloo
def test_items_that_a_sync_gave_out_are_nobody_else_s() -> None:
    """They are not overwritten by the next one, which receives into the same memory."""
    for found in run(2, all_kept, backend="gloo"):
        for (lengths, rounds), values in zip(LENGTHS, found, strict=True):
            assert [values[0][1], values[-1][1]] == [rounds] * 2
            for step, (value, _) in enumerate(values):
                whole = [(rank, place) for rank in range(2) for place in range(3)]
                wanted = [torch.full((lengths[step][r],), 100.0 * step + 10 * r + place) for r, place in whole]
                assert all(map(torch.equal, value, wanted))


def retrieval(comm: Any) -> RetrievalMAP:
    metric = RetrievalMAP()
    for _ in range(2 + comm.rank):
        metric.update(torch.rand(3), torch.tensor([0, 1, 1]), indexes=torch.zeros(3, dtype=torch.long))
    return metric


def changed_inside(comm: Any, how: str) -> bool:
    """Whether local items are the same objects with the same numbers after a block that changed them in place."""
    metric = retrieval(comm)
    local, copies = [*metric.preds], [item.clone() for item in metric.preds]
    with synced(metric, comm=comm):
        for item in metric.preds:
            if how == "zero":
                item.zero_()
            else:
                item.resize_(7)
    return all(map(torch.equal, metric.preds, copies)) and all(map(lambda x, y: x is y, metric.preds, local))


@pytest.mark.parametrize("how", ["zero", "resize"])
def test_what_a_block_does_to_items_is_undone(how: str) -> None:
    """Whoever does it: the block, a wrapper of the user's, a compute that was put in place of the class's own."""
    assert run(2, changed_inside, how) == [True, True]
