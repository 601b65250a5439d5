"""Metrics of third parties: merged by themselves, found inside modules and by entry points, refused."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics as tm
from torch import nn

from distmetrics import StateError, register_adapter, sync_and_compute
from distmetrics.metrics.adapters import MergingAdapter, base
from distmetrics.testing import outcomes, run
from tests.backends import same_error

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")  # before any update: on purpose


class Votes(nn.Module):
    """A third party's metric that can be merged, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.votes: Counter[str] = Counter()
        self.order: list[int] = []
        self.last = ""

    def merge_state(self, others: Any) -> None:
        for other in others:
            self.votes += other.votes
            self.order += other.order
        self.last = "merged"

    def compute(self) -> tuple[dict[str, int], list[int], str]:
        return dict(self.votes), self.order, self.last


class Fails(Votes):
    def merge_state(self, others: Any) -> None:
        self.votes.clear()
        raise ArithmeticError("cannot merge")


class VotesAdapter(MergingAdapter):
    def knows(self, value: Any) -> bool:
        return isinstance(value, Votes)

    def state(self, metric: Votes) -> dict[str, Any]:
        return {"votes": metric.votes, "order": metric.order}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test starts with nothing registered, and looks for entry points anew."""
    monkeypatch.setattr(base, "_registered", [])
    base.installed.cache_clear()
    yield
    base.installed.cache_clear()


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_registered_adapter_that_merges(world_size: int) -> None:
    """Inside of modules too; local state is as before, also where merging fails."""
    register_adapter(VotesAdapter())

    def work(comm: Any) -> Any:
        votes, fails = Votes(), Fails()
        names = {*vars(votes)}
        for step in range(comm.rank):
            for metric in (votes, fails):
                metric.votes[f"v{step}"] += 1
                metric.order.append(10 * comm.rank + step)
        model = nn.Sequential(nn.Linear(1, 1), nn.ModuleDict({"v": votes}))
        value = sync_and_compute(model, comm=comm)["1.v"]
        if comm.world_size > 1:
            with pytest.raises(ArithmeticError, match="cannot merge"):
                sync_and_compute([votes, fails], comm=comm)
        for metric in (votes, fails):
            assert {*vars(metric)} == names
            assert (metric.votes.total(), len(metric.order), metric.last) == (comm.rank, comm.rank, "")
        return value

    order = [10 * rank + step for rank in range(world_size) for step in range(rank)]
    counts = {f"v{step}": world_size - 1 - step for step in range(world_size - 1)}
    assert run(world_size, work) == [(counts, order, "merged" if world_size > 1 else "")] * world_size


_MODULE = """
from distmetrics.metrics.adapters import MergingAdapter

class Metric:
    total = 1
    def merge_state(self, others): self.total += sum(other.total for other in others)
    def compute(self): return self.total

class Known(MergingAdapter):
    def knows(self, value): return isinstance(value, Metric)
    def state(self, metric): return {"total": metric.total}

class Nothing: pass
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that installs a distribution whose entry point is the given one."""

    def install(target: str) -> None:
        (tmp_path / "their_metrics.py").write_text(_MODULE)
        info = tmp_path / "their_metrics-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-metrics\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[distmetrics.adapters]\ntheirs = {target}\n")
        monkeypatch.syspath_prepend(tmp_path)

    yield install
    sys.modules.pop("their_metrics", None)


def test_an_entry_point_is_loaded_once_and_not_before_it_is_needed(installed: Any) -> None:
    installed("their_metrics:Known")
    assert sync_and_compute({"note": "text", "none": None, "list": [1, torch.ones(1)], "t": tm.SumMetric()})["t"] == 0
    assert "their_metrics" not in sys.modules
    import their_metrics  # type: ignore[import-not-found]

    assert run(3, lambda comm: sync_and_compute([their_metrics.Metric()], comm=comm)) == [[3]] * 3
    first = base.installed()
    assert run(2, lambda comm: sync_and_compute([their_metrics.Metric()], comm=comm)) == [[2]] * 2
    assert base.installed() is first


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("no_such_module:Adapter", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("their_metrics:Nothing", "is no instance of an Adapter"),
    ],
)
def test_a_broken_entry_point_on_one_rank_is_told_to_all(installed: Any, target: str, why: str) -> None:
    """Each time that it is needed; what needs no third party works on."""
    installed(target)
    value = object()
    for _ in range(2):
        ended = outcomes(3, lambda comm: sync_and_compute(value if comm.rank == 1 else tm.SumMetric(), comm=comm))
        error = same_error(ended, StateError)
        assert error.peers == (1,)
        whose = "of the distribution their-metrics 1.2, in group distmetrics.adapters,"
        assert f'the entry point theirs = "{target}" {whose}' in str(error)
        assert why in str(error)
    assert sync_and_compute([tm.SumMetric()]) == [0.0]
