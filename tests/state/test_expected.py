"""Result tensors made while the data is under way are those that are made after it, whatever the other ranks send."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics as tm

from distmetrics import MismatchError, StateError, sync_and_compute, synced
from distmetrics.state import execute
from distmetrics.testing import run
from tests.backends import both_backends

KINDS = ("sum", "mean", "max", "min")


class Reduced(tm.Metric):
    """A state of every reduction, in one dtype; ``same``: two names for one tensor."""

    def __init__(self, dtype: torch.dtype = torch.float32, *, same: bool = False) -> None:
        super().__init__()
        self.dtype_, self.same = dtype, same
        for kind in (*KINDS, *(("twice",) if same else ())):
            self.add_state(kind, torch.zeros(2, 3, dtype=dtype), dist_reduce_fx="sum" if kind == "twice" else kind)

    def update(self, x: torch.Tensor) -> None:
        for place, kind in enumerate(KINDS):
            setattr(self, kind, (x * (place + 1)).to(self.dtype_))
        if self.same:
            self.twice = self.sum  # type: ignore[assignment]

    def compute(self) -> list[torch.Tensor]:
        return [getattr(self, kind) for kind in (*KINDS, *(("twice",) if self.same else ()))]


def of_rank(rank: int) -> torch.Tensor:
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(rank)) * 10


def synced_once(comm: Any, dtype: torch.dtype, same: bool, empty: int | None) -> list[torch.Tensor]:
    metric = Reduced(dtype, same=same)
    if comm.rank != empty:
        metric.update(of_rank(comm.rank))
    before = [state.clone() for state in metric.compute()] if comm.rank != empty else []
    result: list[torch.Tensor] = sync_and_compute(metric, comm=comm)
    assert all(map(torch.equal, before, [getattr(metric, kind) for kind in KINDS]))
    return result


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("empty", [None, 0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
def test_results_made_ahead_are_those_made_after(
    dtype: torch.dtype, empty: int | None, same: bool, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, and also where a rank turns out to have sent something else than this one."""
    original, ahead = execute._expect, []

    def watched(*args: Any) -> Any:
        ahead.append(original(*args))
        return ahead[-1]

    monkeypatch.setattr(execute, "_expect", watched)
    one = run(world_size, synced_once, dtype, same, empty)
    monkeypatch.setattr(execute, "_expect", lambda *_: None)
    other = run(world_size, synced_once, dtype, same, empty)
    for mine, theirs in zip(one, other, strict=True):
        assert all(map(torch.equal, mine, theirs))
    # Half precision is folded wide, and the mean of integers is no integer: nothing can be made ahead. An empty rank
    # sends the counts alone.
    count = world_size if dtype in (torch.float32, torch.float64) else 0 if empty is None else 1
    assert sum(map(bool, ahead)) == count


@both_backends
def test_what_a_user_keeps_is_not_overwritten_by_the_next_sync(backend: str) -> None:
    """Values that are states themselves, as a confusion matrix is."""
    first, second = zip(*run(2, keeps_results, backend=backend), strict=True)  # type: ignore[arg-type]
    assert first == ([1.0, 2.0],) * 2
    assert second == ([10.0, 20.0],) * 2


def keeps_results(comm: Any) -> tuple[list[float], list[float]]:
    metric = Reduced()
    metric.update(torch.full((2, 3), 0.5))
    kept = sync_and_compute(metric, comm=comm)
    metric.update(torch.full((2, 3), 5.0))
    with synced(metric, comm=comm):
        inside = [float(metric.sum[0, 0]), float(metric.max[0, 0]) / 15 * 20]
    return [float(kept[0][0, 0]), 4 * float(kept[1][0, 0]) / 2], inside


def test_a_problem_on_one_rank_is_still_told_on_all() -> None:
    """The rank with the problem makes nothing ahead; the others do, and throw it away."""

    def work(comm: Any) -> str:
        metric = Reduced()
        metric.update(of_rank(comm.rank))
        if comm.rank == 1:
            metric.sum = "text"  # type: ignore[assignment]
        with pytest.raises(StateError, match="the state sum is a str"):
            sync_and_compute(metric, comm=comm)
        metric.sum = torch.zeros(2, 3 + comm.rank)
        with pytest.raises(MismatchError, match="the state sum has shapes"):
            sync_and_compute(metric, comm=comm)
        return "told"

    assert run(3, work) == ["told"] * 3
