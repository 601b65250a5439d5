"""The items of a list that a rank has added itself are not made a second time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from distmetrics import synced
from distmetrics.testing import run
from tests.backends import both_backends
from tests.state.samples import Items


def inside(comm: Any, *per_rank: list[Tensor]) -> tuple[list[bool], list[Tensor], bool]:
    """Return whether each item is one of this rank's own objects, the items, and whether the local list is back."""
    metric = Items()
    for item in per_rank[comm.rank]:
        metric.update(item)
    local = metric.items
    with synced(metric, comm=comm):
        items = metric.items
        own = [any(item is mine for mine in local) for item in items]
    return own, [item.detach() for item in items], metric.items is local and items is not local


@both_backends
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_own_items_are_the_same_objects(backend: Any, shape: tuple[int, ...]) -> None:
    """Each rank's stand in their place, between those of the others; a rank without any has only the others'."""
    per_rank = [[torch.full(shape, 1.0), torch.full(shape, 2.0)], [], [torch.full(shape, 3.0)]]
    got = run(3, inside, *per_rank, backend=backend)
    assert [own for own, _, _ in got] == [[True, True, False], [False] * 3, [False, False, True]]
    for _, items, back in got:
        assert back
        assert [item.shape for item in items] == [shape] * 3
        assert [item.mean().item() for item in items] == [1.0, 2.0, 3.0]


def test_not_where_ranks_differ_in_dtype() -> None:
    """All items have the dtype that holds every rank's; a rank that has it keeps its own."""
    got = run(2, inside, [torch.ones(2)], [torch.ones(3, dtype=torch.float64)])
    assert [own for own, _, _ in got] == [[False, False], [False, True]]
    assert {item.dtype for _, items, _ in got for item in items} == {torch.float64}


def test_not_where_they_hang_on_a_graph() -> None:
    """On no rank a gradient flows from what was synced."""
    leaf = torch.ones(2, requires_grad=True)
    got = run(2, inside, [leaf * 2, torch.ones(2)], [torch.ones(2)])
    assert [own for own, _, _ in got] == [[False, False, False], [False, False, True]]
