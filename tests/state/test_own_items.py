"""What computing does to the items of a list that holds all ranks' is not done to this rank's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from distmetrics import sync_and_compute
from distmetrics.testing import run
from tests.backends import both_backends
from tests.state.samples import Items


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
