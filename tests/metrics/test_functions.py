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

from distmetrics import InputError, InputTypeError, MismatchError, StateError, from_function, sync_and_compute, synced
from distmetrics.metrics.function import FunctionMetric
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import both_backends, same_error
from tests.metrics.samples import same

ALL = {"total": "sum", "rows": "sum", "loss": "mean", "high": "max", "low": "min", "seen": "cat"}


def everything(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return state


def make() -> FunctionMetric[dict[str, Tensor]]:
    return from_function(everything, reduce=ALL)  # type: ignore[arg-type]


def feed(metric: FunctionMetric[Any], batches: list[list[int]]) -> FunctionMetric[Any]:
    for batch in batches:
        x = torch.tensor(batch, dtype=torch.float32) / 8
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
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.lists(st.integers(-50, 50), min_size=1, max_size=4), max_size=3), min_size=1, max_size=4))
def test_any_partition_gives_the_value_of_one_process(shards: list[list[list[int]]]) -> None:
    """Ranks without data, other numbers of batches, other sizes of them; bitwise the same on all ranks."""
    whole = feed(make(), [batch for shard in shards for batch in shard]).compute()
    ranks = run(len(shards), on_rank, shards)
    for value, rounds in ranks:
        assert rounds <= 2
        for name, wanted in whole.items():
            assert same(value[name], ranks[0][0][name])
            torch.testing.assert_close(value[name], wanted, equal_nan=True, rtol=1e-12, atol=1e-12)


@both_backends
def test_real_processes(backend: Any) -> None:
    shards = [[[1, 2], [3]], [], [[4, 5, 6]]]
    value, rounds = run(3, on_rank, shards, backend=backend)[1]
    assert rounds == 1
    assert value["loss"].item() == 21 / 6 / 8
    assert value["loss"].dtype == torch.float64
    assert value["total"].item() == 6
    assert (value["high"].item(), value["low"].item()) == (6, 0.125)
    assert value["seen"].tolist() == [i / 8 for i in range(1, 7)]
    assert value["rows"].tolist() == [21 / 8, 0]


def test_sums_alone_take_one_collective() -> None:
    def work(comm: Any) -> Any:
        accuracy = from_function(lambda s: float(s["correct"] / s["total"]), reduce={"correct": "sum", "total": "sum"})
        if comm.rank:
            accuracy.update(correct=torch.tensor([True, False, True]).sum(), total=3)
        record = RecordingCommunicator(comm)
        return sync_and_compute({"accuracy": accuracy}, comm=record), len(record.calls)

    assert run(3, work) == [({"accuracy": pytest.approx(2 / 3)}, 1)] * 3


def test_without_any_data() -> None:
    """What the docs say of each reduction, on every rank and on one."""

    def work(comm: Any) -> list[float]:
        return [float(x) if x.numel() else [] for x in sync_and_compute(make(), comm=comm).values()]

    for world_size in (1, 2):
        for got in run(world_size, work):
            assert got[:2] == [0, 0]
            assert math.isnan(got[2])
            assert got[3:] == [-math.inf, math.inf, []]


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


def test_gradients_are_not_kept() -> None:
    metric = make()
    metric.update(total=torch.ones((), requires_grad=True) * 2, seen=torch.ones(2, requires_grad=True))
    assert not any(x.requires_grad for x in metric.compute().values())


@pytest.mark.parametrize("world_size", [1, 2])
def test_local_state_is_back_when_the_function_raises(world_size: int) -> None:
    def work(comm: Any) -> None:
        metric = from_function(lambda s: 1 // int(s["x"] * 0), reduce={"x": "sum", "y": "cat"})
        metric.update(x=1 + comm.rank, y=torch.ones(comm.rank))
        before = held(metric)
        with pytest.raises(ZeroDivisionError):
            sync_and_compute(metric, comm=comm)
        assert same(held(metric), before)

    run(world_size, work)


def test_inside_the_block() -> None:
    """compute() sees all ranks; update is refused; a second sync too."""

    def work(comm: Any) -> None:
        metric = from_function(lambda s: int(s["x"]), reduce={"x": "sum"})
        metric.update(x=1)
        with synced(metric, comm=comm):
            assert metric.compute() == comm.world_size
            with pytest.raises(StateError, match="would be lost"):
                metric.update(x=1)
        assert metric.compute() == 1
        metric.update(x=1)
        with synced(metric, comm=comm), pytest.raises(StateError, match="holds the state of all ranks already"):
            sync_and_compute(metric, comm=comm)

    run(2, work)


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
    with pytest.raises(InputError, match=text):
        REFUSED[text](metric)
    assert same(held(metric), before)


def test_a_value_that_is_no_number() -> None:
    with pytest.raises(InputTypeError, match="'total' is a str"):
        make().update(total="3")  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    "odd", [{"x": "max"}, {"y": "sum"}, {"x": "mean"}, {"x": "sum", "y": "sum"}], ids=lambda odd: str(odd)
)
def test_other_declarations_are_refused_on_every_rank(odd: Any) -> None:
    def work(comm: Any) -> None:
        metric = from_function(everything, reduce=odd if comm.rank == 1 else {"x": "sum"})
        sync_and_compute(metric, comm=comm)

    assert same_error(outcomes(3, work), MismatchError).peers == (1,)


def test_other_shapes_are_refused_on_every_rank() -> None:
    def work(comm: Any) -> None:
        metric = from_function(everything, reduce={"x": "sum"})
        metric.update(x=torch.ones(2 + comm.rank))
        sync_and_compute(metric, comm=comm)

    assert "the state x has values on different ranks" in str(same_error(outcomes(2, work), MismatchError))
