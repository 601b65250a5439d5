"""What a sync remembers of the last one never shows: after any change, it is as the first sync of a process."""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable
from functools import _lru_cache_wrapper
from typing import Any

import pytest
import torch
import torchmetrics as tm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchmetrics import aggregation, classification

from distmetrics import DistmetricsError, synced
from distmetrics.testing import run
from tests.metrics.samples import CLASSES, Extremes, Items, collection, same, scores, values

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric .* was called before")


class Remembers(tm.Metric):
    """Attributes of every kind, which the tests change between syncs."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.number: Any = 0.0
        self.names = ["a"]
        self.scale = torch.ones(2)
        self.table = {"x": torch.zeros(1)}

    def update(self, x: Tensor) -> None:
        self.total += x.sum()
        self.width = len(x)

    def compute(self) -> tuple[Any, ...]:
        width = getattr(self, "width", None)
        return self.total, width, repr(self.number), [*self.names], self.scale.clone(), self.table["x"].clone()


def make() -> nn.ModuleDict:
    return nn.ModuleDict({
        "own": Remembers(),
        "groups": collection(True),
        "mean": aggregation.MeanMetric(),
        "cat": aggregation.CatMetric(),
        "listed": Items(),
        "extremes": Extremes(),
    })  # fmt: skip


def update(metrics: Any, number: int) -> None:
    batch = values(1 + number, torch.Generator().manual_seed(number))
    for metric in metrics.values():
        if isinstance(metric, tm.MetricCollection | classification.MulticlassAccuracy):
            metric.update(*scores(1 + number, torch.Generator().manual_seed(number)))
        else:
            metric.update(*batch)


def reset(metrics: Any, number: int) -> None:
    [*metrics.values()][number % len(metrics)].reset()


def set_number(metrics: Any, number: int) -> None:
    metrics["own"].number = [0.0, -0.0, 0, False, None, "0.0", 1, True, float("nan")][number]


def change_in_place(metrics: Any, number: int) -> None:
    own = metrics["own"]
    [own.names.append, own.scale.add_, own.table["x"].add_][number % 3](number)


def replace_objects(metrics: Any, number: int) -> None:
    metrics["own"].table = {"x": torch.full((1 + number % 2,), float(number))}
    metrics["own"].weights = nn.Parameter(torch.tensor(float(number))) if number % 3 else None


def to_another_dtype(metrics: Any, number: int) -> None:
    metric = metrics[["own", "mean", "groups"][number % 3]]
    for each in metric.values() if isinstance(metric, tm.MetricCollection) else [metric]:
        each.set_dtype([torch.float32, torch.float64, torch.float16][number // 3])


def another_state(metrics: Any, number: int) -> None:
    """Of another dtype, shape or layout, another object of the same, or not a tensor."""
    states = [torch.tensor(3), torch.ones(2), torch.eye(2).to_sparse(), torch.tensor(2.0), 5, [torch.ones(1)]]
    metrics["own"].total = states[number % len(states)]


def share_a_state(metrics: Any, number: int) -> None:
    metrics["mean"].mean_value = metrics["own"].total


def keep_one_list(metrics: Any, number: int) -> None:
    """In place: the list is the same object with other items."""
    metrics["listed"].items += [torch.ones(number), torch.ones(1, number)][: number % 3]


def another_argument(metrics: Any, number: int) -> None:
    member = metrics["groups"]["f1"]
    member.average = ["micro", "macro"][number % 2]


def more_members(metrics: Any, number: int) -> None:
    if f"new{number}" not in metrics["groups"]:
        metrics["groups"].add_metrics({f"new{number}": classification.MulticlassRecall(CLASSES)})


def other_metrics(metrics: Any, number: int) -> None:
    if "acc" in metrics:
        del metrics["acc"]
    else:
        average = ["macro", None][number // 5]
        metrics["acc"] = classification.MulticlassAccuracy([CLASSES, 7][number % 2], average=average)


def another_object(metrics: Any, number: int) -> None:
    """A metric of another kind under the same name, which most often gets the old one's address."""
    del metrics["mean"]
    gc.collect()
    kinds = aggregation.MeanMetric, aggregation.SumMetric, aggregation.CatMetric
    metrics["mean"] = kinds[number % 3]()


def one_more_state(metrics: Any, number: int) -> None:
    if not hasattr(metrics["own"], "more"):
        metrics["own"].add_state("more", torch.zeros(number % 2 + 1), dist_reduce_fx=["sum", "max", "mean"][number % 3])


CHANGES: list[Callable[[Any, int], None]] = [
    update, update, reset, set_number, change_in_place, replace_objects, to_another_dtype, another_state,
    share_a_state, keep_one_list, another_argument, more_members, other_metrics, another_object, one_more_state,
]  # fmt: skip
changes = st.tuples(st.sampled_from(CHANGES), st.integers(0, 8), st.sampled_from([(0,), (1,), (0, 1), (0, 1)]))


def sync(metrics: Any, comm: Any) -> Any:
    """All that a sync tells: states and attributes inside, the plan, and the local state after; or the error."""
    try:
        with synced(metrics, comm=comm) as plan:
            inside = copy.deepcopy([observed(metric) for metric in metrics.modules()])
    except DistmetricsError as error:
        return type(error).__name__, error.what, error.per_rank
    return str(plan and plan.describe()), inside, copy.deepcopy([observed(metric) for metric in metrics.modules()])


def observed(module: nn.Module) -> Any:
    if not isinstance(module, tm.Metric):
        return None
    own = {name: vars(module).get(name) for name in ("number", "names", "scale", "table", "width", "_update_count")}
    return type(module).__name__, own, {name: vars(module).get(name) for name in module._defaults}


def forget() -> None:
    """Empty every memo of ours."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("distmetrics."):
            for value in vars(module).values():
                if isinstance(value, _lru_cache_wrapper):
                    value.cache_clear()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(changes, max_size=2), min_size=1, max_size=6))
def test_a_sync_is_as_the_first_one(program: list[list[tuple[Any, int, tuple[int, ...]]]]) -> None:
    def work(comm: Any) -> Any:
        metrics = make()
        results = []
        for step in program:
            for change, number, ranks in step:
                if comm.rank in ranks:
                    try_to(change, metrics, number)
            fresh = copy.deepcopy(metrics)
            results.append((fresh, sync(metrics, comm)))
        return results

    for column in zip(*run(2, work), strict=True):
        forget()
        at_first = run(2, lambda comm, column=column: sync(column[comm.rank][0], comm))  # type: ignore[misc]
        for (_, result), first in zip(column, at_first, strict=True):
            assert alike(result, first), f"{result}\n{first}"


def try_to(change: Callable[[Any, int], None], metrics: Any, number: int) -> None:
    """Change; a metric that refuses, since its state was replaced before, stays as that has left it."""
    try:
        change(metrics, number)
    except (RuntimeError, TypeError, AttributeError, ValueError):
        return


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        if not isinstance(b, Tensor) or a.layout is not b.layout:
            return False
        return same(a, b) if a.layout is torch.strided else repr(a) == repr(b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return repr(a) == repr(b)


def test_the_comparison_can_fail() -> None:
    assert not alike([0.0], [-0.0])
    assert not alike({"x": torch.ones(1)}, {"x": torch.ones(1).double()})
    assert not alike(1, True)
