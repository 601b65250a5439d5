"""Metrics of plain functions: whatever the partition, the value of one process; local state back afterwards."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distmetrics import InputError, InputTypeError, from_function, sync_and_compute
from distmetrics.metrics.function import FunctionMetric
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator
from tests.metrics.samples import same

ALL: dict[str, Any] = {"total": "sum", "rows": "sum", "loss": "mean", "high": "max", "low": "min", "seen": "cat"}


def everything(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return state


def fed(batches: list[list[int]]) -> FunctionMetric[Any]:
    metric = from_function(everything, reduce=ALL)
    for batch in batches:
        x = torch.tensor(batch, dtype=torch.float32, requires_grad=True) / 8
        rows, high, low = torch.stack([x.sum(), (x > 1).sum()]), max(batch), x.min()
        metric.update(total=len(batch), rows=rows, loss=x.mean(), weight=len(batch), high=high, low=low, seen=x)
    return metric


def held(metric: FunctionMetric[Any]) -> list[Any]:
    return [list(metric._held), *copy.deepcopy(list(metric._held.values()))]


def on_rank(comm: Any, shards: list[list[list[int]]]) -> Any:
    metric = fed(shards[comm.rank])
    before = held(metric)
    record = RecordingCommunicator(comm)
    value = sync_and_compute(metric, comm=record)
    assert same(held(metric), before)
    assert same(list(sync_and_compute(metric, comm=comm).values()), list(value.values()))
    return value, len(record.calls)


@pytest.mark.filterwarnings("ignore:.*hold the same data")
@settings(max_examples=25)
@given(st.lists(st.lists(st.lists(st.integers(-50, 50), min_size=1, max_size=4), max_size=3), min_size=1, max_size=4))
def test_any_partition_gives_the_value_of_one_process(shards: list[list[list[int]]]) -> None:
    """Ranks without data, other numbers of batches, other sizes of them; bitwise the same on all ranks."""
    whole = fed([batch for shard in shards for batch in shard]).compute()
    ranks = run(len(shards), on_rank, shards)
    for value, rounds in ranks:
        assert rounds <= 2
        assert not any(x.requires_grad for x in value.values())
        for name, wanted in whole.items():
            assert same(value[name], ranks[0][0][name])
            torch.testing.assert_close(value[name], wanted, equal_nan=True, rtol=1e-12, atol=1e-12)


def test_large_counts_half_precision_and_empty_batches() -> None:
    """2²⁴ + 1 units are counted; bfloat16 losses are summed wide; bools are counted; the mean of nothing is neutral."""
    metric = from_function(everything, reduce={"a": "sum", "b": "sum", "c": "sum", "weight": "sum"})
    metric.update(a=torch.tensor(2.0**24), b=torch.tensor(256, dtype=torch.bfloat16), c=torch.tensor(True), weight=3)
    metric.update(a=torch.tensor(1.0), b=torch.tensor(1, dtype=torch.bfloat16), c=True)
    assert [x.item() for x in metric.compute().values()] == [2**24 + 1, 257, 2, 3]  # without a mean, a plain name
    mean = from_function(lambda s: s["loss"].item(), reduce={"loss": "mean"})
    mean.update(loss=torch.tensor([]).mean(), weight=0)
    assert math.isnan(mean.compute())
    mean.update(loss=4, weight=torch.tensor(2))
    assert mean.compute() == 4


def test_what_is_given_is_copied() -> None:
    """A buffer that is used again changes nothing; neither does the function that computes."""
    buffer = torch.ones(2, dtype=torch.float64)
    metric = from_function(
        lambda s: [x.add_(1).tolist() for x in s.values()], reduce={"a": "sum", "b": "cat", "c": "max"}
    )
    metric.update(a=buffer, b=buffer, c=buffer)
    buffer.zero_()
    assert metric.compute() == metric.compute() == sync_and_compute(metric) == [[2, 2], [2, 2], [2, 2]]


def test_reset_pickle_and_copy() -> None:
    metric = fed([[1, 2], [3]])
    for again in (pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric)):
        assert same(list(again.compute().values()), list(metric.compute().values()))
    metric.reset()
    assert same(held(metric), held(fed([])))


@pytest.mark.parametrize(
    ("update", "text"),
    [
        ({"los": 1}, "'los' is none of total, rows"),
        ({"loss": 1.0, "weight": 1, "total": "3"}, "'total' is a str"),
        ({"loss": 1.0, "weight": -1}, "0 or more, got -1"),
        ({"loss": 1.0, "weight": math.nan}, "0 or more, got nan"),
        ({"total": 9, "rows": torch.ones(3)}, r"'rows' had the shape \[2\] and now has \[3\]; a sum is elementwise"),
        ({"high": torch.ones(1)}, r"'high' had the shape \[\] and now has \[1\]; a max"),
    ],
)
def test_a_wrong_update_is_refused_and_adds_nothing(update: Any, text: str) -> None:
    metric = fed([[1, 2]])
    before = held(metric)
    with pytest.raises((InputError, InputTypeError), match=text):
        metric.update(**update)
    assert same(held(metric), before)
    with pytest.raises(InputError, match="give the value another name"):
        from_function(everything, reduce={"x": "mean", "weight": "sum"})
