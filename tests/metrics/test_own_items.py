"""What computing does to the items of a list that holds all ranks' is not done to this rank's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import SumMetric
from torchmetrics.retrieval import RetrievalMAP

from distmetrics import sync_and_compute, synced
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import both_backends
from tests.metrics.samples import Items


class Doubles(Items):
    """Changes its items in place as it computes."""

    def compute(self) -> Any:
        return [item.mul_(2) for item in self.items]


def doubled(comm: Any, *per_rank: list[Tensor]) -> tuple[list[Tensor], bool]:
    """Return what was computed, and whether the local items are the same objects with the same numbers."""
    metric = Doubles()
    for item in per_rank[comm.rank]:
        metric.update(item)
    local, copies = [*metric.items], [item.clone() for item in metric.items]
    value = sync_and_compute(metric, comm=comm)
    same = all(now is then for now, then in zip(metric.items, local, strict=True))
    return value, same and all(map(torch.equal, metric.items, copies))


@both_backends
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_items_changed_in_place(backend: Any, shape: tuple[int, ...]) -> None:
    per_rank = [[torch.full(shape, 1.0), torch.full(shape, 2.0)], [], [torch.full(shape, 3.0)]]
    for value, intact in run(3, doubled, *per_rank, backend=backend):
        assert intact
        assert [item.shape for item in value] == [shape] * 3
        assert [item.mean().item() for item in value] == [2.0, 4.0, 6.0]


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


@both_backends
@pytest.mark.parametrize(
    ("lengths", "rounds"),
    [
        pytest.param([[5, 5]] * 5, 1, id="all ride along, as the last time"),
        pytest.param([[5, 2000], [2000, 5], [5, 2000], [2000, 2000], [2000, 5]], 1, id="all ride along, of any length"),
        pytest.param([[5, 3000], [3000, 5], [5, 3000], [5, 3000], [3000, 5]], 2, id="one rides along"),
        pytest.param([[3000, 3000]] * 5, 2, id="all follow"),
    ],
)
def test_items_that_ride_along_are_nobody_else_s(backend: Any, lengths: list[list[int]], rounds: int) -> None:
    """What a sync gave out is not overwritten by the next one, which receives into the same memory."""
    for values in run(2, kept, lengths, backend=backend):
        assert [values[0][1], values[-1][1]] == [rounds] * 2
        for step, (value, _) in enumerate(values):
            whole = [(rank, place) for rank in range(2) for place in range(3)]
            wanted = [torch.full((lengths[step][rank],), 100.0 * step + 10 * rank + place) for rank, place in whole]
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


@both_backends
@pytest.mark.parametrize("how", ["zero", "resize"])
def test_what_a_block_does_to_items_is_undone(backend: Any, how: str) -> None:
    """Whoever does it: the block, a wrapper of the user's, a compute that was put in place of the class's own."""
    assert run(2, changed_inside, how, backend=backend) == [True, True]


def with_gradient(comm: Any) -> tuple[bool, bool]:
    metric = retrieval(comm)
    weight = torch.ones(3, requires_grad=True)
    metric.preds = [item * weight for item in metric.preds]  # update detaches here; another metric's need not
    with synced(metric, comm=comm):
        inside = any(item.requires_grad for item in metric.preds)
    sync_and_compute(metric, comm=comm)
    return inside, all(item.requires_grad for item in metric.preds)


def test_items_that_need_a_gradient_are_copied_without() -> None:
    """All ranks' are alike, and the local ones keep theirs."""
    assert run(2, with_gradient) == [(False, True)] * 2
