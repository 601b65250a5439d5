"""Metrics of third parties: registered, found by entry points, preferred, refused."""

from __future__ import annotations

import collections
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics as tm
from torch import Tensor, nn

from distmetrics import ConfigurationError, MismatchError, StateError, register_adapter, sync_and_compute, synced
from distmetrics.metrics.adapters import Adapter, MergingAdapter, StateSpec, base, targets
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests import warm
from tests.backends import same_error

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")  # before any update: on purpose


class Deviation:
    """A third party's metric with sums, a maximum and a list."""

    def __init__(self, width: int = 2) -> None:
        self.n = 0
        self.sums = torch.zeros(width, dtype=torch.float64)
        self.high = torch.tensor(-torch.inf)
        self.seen: list[Tensor] = []

    def add(self, x: Tensor) -> None:
        self.n += 1
        self.sums = self.sums + torch.stack([x.sum(), (x * x).sum()])
        self.high = torch.maximum(self.high, x.max())
        self.seen.append(x)

    def result(self) -> tuple[list[float], float, int]:
        return self.sums.tolist(), float(self.high), sum(map(len, self.seen))


class DeviationAdapter(Adapter):
    counter = "n"

    def knows(self, value: Any) -> bool:
        return isinstance(value, Deviation)

    def states(self, metric: Deviation) -> list[StateSpec]:
        shape = tuple(metric.sums.shape)
        return [StateSpec("sums", "sum", shape=shape), StateSpec("high", "max"), StateSpec("seen", "cat")]

    def updates(self, metric: Deviation) -> int:
        return metric.n

    def compute(self, metric: Deviation) -> Any:
        return metric.result()


class Votes:
    """A third party's metric that can be merged, and no more."""

    def __init__(self) -> None:
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


# -- registered


def deviations(comm: Any) -> Any:
    metric = Deviation()
    for step in range(comm.rank):
        metric.add(torch.arange(2.0) + step)
    total = tm.SumMetric()
    total.update(1.0)
    before = dict(vars(metric))
    record = RecordingCommunicator(comm)
    values = sync_and_compute({"d": [metric], "t": total}, comm=record)
    assert vars(metric) == before
    assert all(vars(metric)[name] is value for name, value in before.items())
    return values, len(record.calls)


def test_a_registered_adapter_with_reductions() -> None:
    """Together with torchmetrics, in one collective; rank 0 has no data."""
    register_adapter(DeviationAdapter())
    whole = Deviation()
    for rank in range(3):
        for step in range(rank):
            whole.add(torch.arange(2.0) + step)
    assert run(3, deviations) == [({"d": [whole.result()], "t": 3.0}, 1)] * 3
    assert run(1, lambda comm: deviations(comm)[0]["d"][0]) == [([0.0, 0.0], -torch.inf, 0)]


def votes(comm: Any) -> Any:
    metric = Votes()
    for step in range(comm.rank):
        metric.votes[f"v{step}"] += 1
        metric.order.append(10 * comm.rank + step)
    before = (Counter(metric.votes), list(metric.order))
    value = sync_and_compute({"v": metric}, comm=comm)["v"]
    assert (metric.votes, metric.order, metric.last) == (*before, "")
    assert set(vars(metric)) == {"votes", "order", "last"}
    return value


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_registered_adapter_that_merges(world_size: int) -> None:
    register_adapter(VotesAdapter())
    order = [10 * rank + step for rank in range(world_size) for step in range(rank)]
    counts = {f"v{step}": world_size - 1 - step for step in range(world_size - 1)}
    wanted = (counts, order, "merged" if world_size > 1 else "")
    assert run(world_size, votes) == [wanted] * world_size


def test_merging_that_fails_leaves_local_state() -> None:
    class Fails(Votes):
        def merge_state(self, others: Any) -> None:
            self.votes.clear()
            raise ArithmeticError("cannot merge")

    def work(comm: Any) -> None:
        metric = Fails()
        metric.votes["a"] = 1
        with pytest.raises(ArithmeticError, match="cannot merge"):
            sync_and_compute(metric, comm=comm)
        assert metric.votes == {"a": 1}

    register_adapter(VotesAdapter())
    run(2, work)


def test_arguments_that_differ_are_refused_on_every_rank() -> None:
    register_adapter(DeviationAdapter())
    ended = outcomes(3, lambda comm: sync_and_compute(Deviation(2 + (comm.rank == 1)), comm=comm))
    assert same_error(ended, MismatchError).peers == (1,)


def test_without_an_adapter_it_is_no_metric() -> None:
    with pytest.raises(StateError, match="register_adapter makes other metrics known"):
        sync_and_compute(Deviation())
    register_adapter(DeviationAdapter())
    assert [target.path for target in targets({"b": Deviation(), "a": [Deviation(), 1, None]})] == ["a.0", "b"]


def test_inside_modules() -> None:
    class Both(nn.Module):
        def result(self) -> float:
            return 1.0

    class BothAdapter(VotesAdapter):
        def knows(self, value: Any) -> bool:
            return isinstance(value, Both)

        def state(self, metric: Any) -> dict[str, Any]:
            return {}

        def merge(self, first: Any, others: Any) -> None:
            first.training = False

        def compute(self, metric: Any) -> Any:
            return metric.training

    register_adapter(BothAdapter())

    def work(comm: Any) -> Any:
        model = nn.Sequential(nn.Linear(1, 1), nn.ModuleDict({"m": Both()}))
        value = sync_and_compute(model, comm=comm)
        assert all(module.training for module in model.modules())
        return value

    assert run(2, work) == [{"1.m": False}] * 2


def test_the_latest_is_asked_first_and_before_the_built_in() -> None:
    class Mine(Adapter):
        def knows(self, value: Any) -> bool:
            return isinstance(value, tm.SumMetric)

        def states(self, metric: Any) -> list[StateSpec]:
            return []

        def compute(self, metric: Any) -> str:
            return "mine"

    class Later(Mine):
        def compute(self, metric: Any) -> str:
            return "later"

    mine = Mine()
    assert sync_and_compute([tm.SumMetric()]) == [0.0]
    register_adapter(mine)
    assert sync_and_compute([tm.SumMetric(), tm.MaxMetric()])[0] == "mine"
    register_adapter(Later())
    register_adapter(mine)  # again: changes nothing
    assert sync_and_compute([tm.SumMetric()]) == ["later"]
    assert len(base._registered) == 2


@pytest.mark.parametrize("wrong", [DeviationAdapter, "deviation", None])
def test_what_is_no_adapter_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no instance of an Adapter"):
        register_adapter(wrong)


# -- entry points

_MODULE = """
from distmetrics.metrics.adapters import MergingAdapter
loads = globals().get("loads", 0) + 1
class Metric:
    total = 1
    def merge_state(self, others): self.total += sum(other.total for other in others)
    def compute(self): return self.total
class Known(MergingAdapter):
    def knows(self, value): return isinstance(value, Metric)
    def state(self, metric): return {"total": metric.total}
known = Known()
class Nothing: pass
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that installs a distribution whose entry point is the given one."""

    def install(target: str) -> None:
        (tmp_path / "their_metrics.py").write_text(_MODULE)
        info = tmp_path / "their_metrics-1.2.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-metrics\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[distmetrics.adapters]\ntheirs = {target}\n")
        monkeypatch.syspath_prepend(tmp_path)

    yield install
    sys.modules.pop("their_metrics", None)


@pytest.mark.parametrize("target", ["their_metrics:Known", "their_metrics:known"])
def test_an_entry_point_is_found(installed: Any, target: str) -> None:
    """A class or an instance; not loaded before a value is met that nobody knows, and once."""
    installed(target)

    def one() -> tm.SumMetric:
        total = tm.SumMetric()
        total.update(1.0)
        return total

    assert sync_and_compute({"t": one(), "note": "text", "none": None, "list": [1, torch.ones(1)]})["t"] == 1.0
    assert "their_metrics" not in sys.modules
    import their_metrics  # type: ignore[import-not-found]

    work = lambda comm: sync_and_compute([their_metrics.Metric(), one()], comm=comm)  # noqa: E731
    assert run(3, work) == [[3, 3.0]] * 3
    first = base.installed()
    assert run(2, work) == [[2, 2.0]] * 2
    assert base.installed() is first


BROKEN = {
    "no_such_module:Adapter": "ModuleNotFoundError: No module named 'no_such_module'",
    "their_metrics:Missing": "AttributeError: module 'their_metrics' has no attribute 'Missing'",
    "their_metrics:Nothing": "is no instance of an Adapter",
}


@pytest.mark.parametrize("target", BROKEN)
def test_a_broken_entry_point_names_its_distribution(installed: Any, target: str) -> None:
    """Each time that it is needed; what needs no third party works on."""
    installed(target)
    for _ in range(2):
        with pytest.raises(StateError) as caught:
            sync_and_compute(object())
        text = str(caught.value)
        whose = "of the distribution their-metrics 1.2, in group distmetrics.adapters,"
        assert f'the entry point theirs = "{target}" {whose}' in text
        assert BROKEN[target] in text
    assert sync_and_compute([tm.SumMetric()]) == [0.0]


def test_a_broken_entry_point_on_one_rank_is_told_to_all(installed: Any) -> None:
    installed("no_such_module:Adapter")

    def work(comm: Any) -> None:
        sync_and_compute(object() if comm.rank == 1 else tm.SumMetric(), comm=comm)

    error = same_error(outcomes(3, work), StateError)
    assert error.peers == (1,)
    assert "their-metrics 1.2" in str(error)


def test_the_built_in_adapters_load_with_their_library_alone() -> None:
    """Who uses torchmetrics does not load torcheval, nor the other way round."""
    for library, other, metric in [("torchmetrics", "torcheval", "SumMetric"), ("torcheval", "torchmetrics", "Sum")]:
        code = (
            f"import sys, warnings; warnings.simplefilter('ignore'); import distmetrics, {library}.metrics as _\n"
            if library == "torcheval"
            else f"import sys, distmetrics, {library} as _\n"
        )
        code += f"assert distmetrics.sync_and_compute(_.{metric}()) == 0\nassert {other!r} not in sys.modules"
        done = warm.run("-c", code, env=os.environ)
        assert done.returncode == 0, done.stderr


def test_named_tuples_and_queues_are_no_metrics() -> None:
    """Containers of any kind are looked through, not mistaken."""
    pair = collections.namedtuple("pair", "a b")(tm.SumMetric(), 2)
    with synced(pair):
        pass
    assert sync_and_compute(pair) == [0.0, 2]
