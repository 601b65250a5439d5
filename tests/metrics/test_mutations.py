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
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchmetrics import CatMetric, MeanMetric, Metric, MetricCollection, SumMetric

from distmetrics import DistmetricsError, synced
from distmetrics.testing import run
from tests.metrics.samples import Extremes, Items, Own, collection, same, scores, values

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric .* was called before")


def make() -> nn.ModuleDict:
    made = {"own": Own(), "groups": collection(True), "mean": MeanMetric(), "cat": CatMetric()}
    return nn.ModuleDict(made | {"listed": Items(), "extremes": Extremes()})


def update(metrics: Any, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    for metric in metrics.values():
        if isinstance(metric, MetricCollection):
            metric.update(*scores(1 + number, generator))
        else:
            (x,) = values(1 + number, generator)
            metric.update(x[:, None] if isinstance(metric, Own) else x)


def reset(metrics: Any, number: int) -> None:
    [*metrics.values()][number % len(metrics)].reset()


def set_attribute(metrics: Any, number: int) -> None:
    metrics["own"].note = [0.0, -0.0, 0, False, None, "0.0", 1, True, float("nan")][number]


def another_state(metrics: Any, number: int) -> None:
    """Of another dtype, shape or layout, another object of the same, or not a tensor."""
    states = [torch.tensor(3), torch.ones(2), torch.eye(2).to_sparse(), torch.tensor(2.0), 5, [torch.ones(1)]]
    metrics["own"].total = states[number % len(states)]


def another_argument(metrics: Any, number: int) -> None:
    metrics["groups"]["f1"].average = ["micro", "macro"][number % 2]


def another_object(metrics: Any, number: int) -> None:
    """A metric of another kind under the same name, which most often gets the old one's address."""
    del metrics["mean"]
    gc.collect()
    metrics["mean"] = (MeanMetric, SumMetric, CatMetric)[number % 3]()


def one_more_state(metrics: Any, number: int) -> None:
    if not hasattr(metrics["own"], "more"):
        metrics["own"].add_state("more", torch.zeros(number % 2 + 1), dist_reduce_fx=["sum", "max", "mean"][number % 3])


CHANGES: list[Callable[[Any, int], None]] = [
    update, update, reset, set_attribute, another_state, another_argument, another_object, one_more_state,
]  # fmt: skip
changes = st.tuples(st.sampled_from(CHANGES), st.integers(0, 8), st.sampled_from([(0,), (1,), (0, 1), (0, 1)]))


def sync(metrics: Any, comm: Any) -> Any:
    """Return all that a sync tells: states inside, the plan, and the local state after; or the error."""
    try:
        with synced(metrics, comm=comm) as plan:
            inside = copy.deepcopy([observed(metric) for metric in metrics.modules()])
    except DistmetricsError as error:
        return type(error).__name__, error.what, error.per_rank
    return str(plan and plan.describe()), inside, copy.deepcopy([observed(metric) for metric in metrics.modules()])


def observed(module: nn.Module) -> Any:
    if not isinstance(module, Metric):
        return None
    return type(module).__name__, {
        n: vars(module).get(n) for n in (*module._defaults, "note", "width", "_update_count")
    }


def forget() -> None:
    """Empty every memo of ours."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("distmetrics."):
            for value in vars(module).values():
                if isinstance(value, _lru_cache_wrapper):
                    value.cache_clear()


@settings(max_examples=10)
@given(st.lists(st.lists(changes, max_size=2), min_size=1, max_size=3))
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
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, Tensor) and a.layout is b.layout is torch.strided:
        return same(a, b)
    return repr(a) == repr(b)
