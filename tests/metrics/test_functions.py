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

ALL = {"total": "sum", "rows": "sum", "loss": "mean", "high": "max", "low": "min", "seen": "cat"}


def everything(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return state


def make() -> FunctionMetric[dict[str, Tensor]]:
    return from_function(everything, reduce=ALL)  # type: ignore[arg-type]


def feed(metric: FunctionMetric[Any], batches: list[list[int]]) -> FunctionMetric[Any]:
    for batch in batches:
        x = torch.tensor(batch, dtype=torch.float32, requires_grad=True) / 8
        metric.update(
            total=len(batch),
            rows=torch.stack([x.sum(), (x > 1).sum()]),
            loss=x.mean(),
            weight=len(batch),
            high=max(batch),
            low=x.min(),
            seen=x,
        )
    return metric


def held(metric: FunctionMetric[Any]) -> list[Any]:
    return [list(metric._held), *copy.deepcopy(list(metric._held.values()))]


def on_rank(comm: Any, shards: list[list[list[int]]]) -> Any:
    metric = feed(make(), shards[comm.rank])
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
    whole = feed(make(), [batch for shard in shards for batch in shard]).compute()
    ranks = run(len(shards), on_rank, shards)
    for value, rounds in ranks:
        assert rounds <= 2
        assert not any(x.requires_grad for x in value.values())
        for name, wanted in whole.items():
            assert same(value[name], ranks[0][0][name])
            torch.testing.assert_close(value[name], wanted, equal_nan=True, rtol=1e-12, atol=1e-12)


def test_large_counts_and_half_precision() -> None:
    """2²⁴ + 1 units are counted; bfloat16 losses are summed wide; bools are counted."""
    metric = from_function(everything, reduce={"a": "sum", "b": "sum", "c": "sum"})
    metric.update(a=torch.tensor(2.0**24), b=torch.tensor(256, dtype=torch.bfloat16), c=torch.tensor(True))
    metric.update(a=torch.tensor(1.0), b=torch.tensor(1, dtype=torch.bfloat16), c=True)
    assert [x.item() for x in metric.compute().values()] == [2**24 + 1, 257, 2]


def test_an_empty_batch_is_neutral() -> None:
    """Its mean is NaN and its weight 0."""
    metric = from_function(lambda s: s["loss"].item(), reduce={"loss": "mean"})
    metric.update(loss=torch.tensor([]).mean(), weight=0)
    assert math.isnan(metric.compute())
    metric.update(loss=4, weight=torch.tensor(2))
    assert metric.compute() == 4


def test_what_is_given_is_copied() -> None:
    """A buffer that is used again changes nothing; neither does the function that computes."""
    buffer = torch.ones(2, dtype=torch.float64)
    reduce = {"a": "sum", "b": "cat", "c": "max"}
    metric = from_function(lambda s: [x.add_(1).tolist() for x in s.values()], reduce=reduce)  # type: ignore[arg-type]
    metric.update(a=buffer, b=buffer, c=buffer)
    buffer.zero_()
    assert metric.compute() == metric.compute() == sync_and_compute(metric) == [[2, 2], [2, 2], [2, 2]]


def test_reset_pickle_and_copy() -> None:
    metric = feed(make(), [[1, 2], [3]])
    for again in (pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric)):
        assert same(list(again.compute().values()), list(metric.compute().values()))
    metric.reset()
    assert same(held(metric), held(make()))


# -- refused


REFUSED: dict[str, Any] = {
    "'los' is none of total, rows": lambda m: m.update(los=1),
    "the mean 'loss' needs a weight": lambda m: m.update(loss=1.0),
    "'total' is a str": lambda m: m.update(loss=1.0, weight=1, total="3"),
    "0 or more, got -1": lambda m: m.update(loss=1.0, weight=-1),
    "0 or more, got nan": lambda m: m.update(loss=1.0, weight=math.nan),
    r"'rows' had the shape \[2\] and now has \[3\]; a sum is elementwise": lambda m: m.update(
        total=9, rows=torch.ones(3)
    ),
    r"'high' had the shape \[\] and now has \[1\]; a max": lambda m: m.update(high=torch.ones(1)),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_wrong_update_is_refused_and_adds_nothing(text: str) -> None:
    metric = feed(make(), [[1, 2]])
    before = held(metric)
    with pytest.raises((InputError, InputTypeError), match=text):
        REFUSED[text](metric)
    assert same(held(metric), before)


@pytest.mark.parametrize(
    ("reduce", "text"),
    [
        ({"x": "avg"}, "'x' is reduced by 'avg', which is none of sum, mean, max, min, cat"),
        ({"x": "mean", "weight": "sum"}, "give the value another name"),
    ],
)
def test_a_wrong_declaration_is_refused(reduce: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        from_function(everything, reduce=reduce)


def test_weight_is_a_plain_name_without_a_mean() -> None:
    metric = from_function(lambda s: s["weight"].item(), reduce={"weight": "sum"})
    metric.update(weight=3)
    assert metric.compute() == 3
