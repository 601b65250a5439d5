"""The value over all ranks is what one process that saw all the data would have computed, however it is shared."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distmetrics import sync_and_compute, synced
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator
from tests.metrics.samples import SAMPLES, batches, flat, lists_follow, same, shard, states

# What torchmetrics says of metrics that keep all data, and of a rank that computes before it has updated.
pytestmark = pytest.mark.filterwarnings("ignore:Metric `.*` will save all targets")
TOTAL = 24
every_sample = pytest.mark.parametrize("name", SAMPLES)


@st.composite
def partitions(draw: st.DrawFn) -> list[int]:
    """Where the data is cut for 1 to 4 ranks; equal cuts leave a rank without data."""
    world_size = draw(st.integers(1, 4))
    inner = draw(st.lists(st.integers(0, TOTAL), min_size=world_size - 1, max_size=world_size - 1))
    return [0, *sorted(inner), TOTAL]


def feed(metric: Any, part: tuple[torch.Tensor, ...]) -> Any:
    """Update with up to two batches; a rank without data never updates."""
    rows = len(part[0])
    for start, stop in ((0, rows // 2), (rows // 2, rows)):
        if stop > start:
            metric.update(*(x[start:stop] for x in part))
    return metric


def on_rank(comm: Any, name: str, data: tuple[torch.Tensor, ...], cuts: list[int], other_way: Any = nullcontext) -> Any:
    """Sync twice; return value, collectives; local state must be as before, and syncing again must change nothing."""
    metric = feed(SAMPLES[name].make(), shard(data, cuts, comm.rank))
    modules = torch.nn.ModuleList([metric])
    before = states(modules)
    record = RecordingCommunicator(comm)
    value = sync_and_compute(metric, comm=record)
    assert same(states(modules), before)
    with other_way():
        again = sync_and_compute(metric, comm=comm)
    assert same(flat(again), flat(value))
    return flat(value), [call.op for call in record.calls]


def single(name: str, data: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return flat(feed(SAMPLES[name].make(), data).compute())


def check(name: str, ranks: list[Any], data: tuple[torch.Tensor, ...]) -> None:
    for value, _ in ranks:
        assert same(value, ranks[0][0]), "ranks differ"
    for got, wanted in zip(ranks[0][0], single(name, data), strict=True):
        if name == "CatMetric":
            wanted = wanted.reshape(got.shape)
        assert got.shape == wanted.shape
        if wanted.is_floating_point():
            torch.testing.assert_close(got, wanted, rtol=2e-6, atol=1e-6, equal_nan=True, check_dtype=True)
        else:
            assert torch.equal(got, wanted)


@every_sample
@settings(max_examples=12, deadline=None)
@given(cuts=partitions(), seed=st.integers(0, 3), ride=st.booleans())
def test_any_partition_gives_the_value_of_one_process(name: str, cuts: list[int], seed: int, ride: bool) -> None:
    """Any cuts, ranks without data included; bitwise equal on all ranks; one round, and one more if lists follow."""
    data = batches(SAMPLES[name], TOTAL, seed)
    with nullcontext() if ride else lists_follow():
        ranks = run(len(cuts) - 1, on_rank, name, data, cuts)
    check(name, ranks, data)
    rounds = 1 if ride else SAMPLES[name].rounds
    assert [len(ops) for _, ops in ranks] == [rounds if len(cuts) > 2 else 0] * (len(cuts) - 1)


def all_on_rank(comm: Any, names: list[str], cuts: list[int]) -> dict[str, Any]:
    return {name: on_rank(comm, name, batches(SAMPLES[name], TOTAL, 1), cuts, lists_follow) for name in names}


@pytest.mark.gloo
@pytest.mark.parametrize("cuts", [[0, 5, TOTAL], [0, 0, TOTAL], [0, 3, 3, 20, TOTAL]], ids=str)
def test_real_processes_give_the_same(cuts: list[int]) -> None:
    """All samples in one start, with a rank without data and without; lists ride along, and follow."""
    ranks = run(len(cuts) - 1, all_on_rank, list(SAMPLES), cuts, backend="gloo")
    for name in SAMPLES:
        check(name, [rank[name] for rank in ranks], batches(SAMPLES[name], TOTAL, 1))


def together(comm: Any, names: list[str], cuts: list[int]) -> Any:
    metrics = {
        name: feed(SAMPLES[name].make(), shard(batches(SAMPLES[name], TOTAL, 1), cuts, comm.rank)) for name in names
    }
    record = RecordingCommunicator(comm)
    values = sync_and_compute(metrics, comm=record)
    return {name: flat(value) for name, value in values.items()}, len(record.calls)


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("cuts", [[0, 5, TOTAL], [0, 0, 9, TOTAL]], ids=str)
def test_metrics_together_cost_no_more_than_one(rounds: int, cuts: list[int]) -> None:
    """All samples of one kind in one sync: one round, two where lists follow; the values are those of each alone."""
    names = [name for name, sample in SAMPLES.items() if sample.rounds <= rounds]
    with lists_follow():
        ranks = run(len(cuts) - 1, together, names, cuts)
    assert [count for _, count in ranks] == [rounds] * (len(cuts) - 1)
    for name in names:
        check(name, [(values[name], None) for values, _ in ranks], batches(SAMPLES[name], TOTAL, 1))


@every_sample
def test_no_data_anywhere_is_what_one_process_without_data_gets(name: str) -> None:
    """No update on any rank: the default state, or the metric's own error; never a hang, and state as before."""

    def outcome(compute: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "compute before update" is torchmetrics' to say
            try:
                return flat(compute())
            except Exception as error:  # noqa: BLE001  (whatever the metric raises)
                return [type(error).__name__]

    def work(comm: Any) -> Any:
        metric = SAMPLES[name].make()
        got = outcome(lambda: sync_and_compute(metric, comm=comm))
        assert same(states(torch.nn.ModuleList([metric])), states(torch.nn.ModuleList([SAMPLES[name].make()])))
        return got

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = outcome(SAMPLES[name].make().compute)
        for got in run(2, work):
            assert same(got, alone)


@every_sample
def test_update_and_sync_again(name: str) -> None:
    """A synced metric goes on as if nothing had happened: half the data, sync, the rest, sync."""
    sample = SAMPLES[name]
    data = batches(sample, TOTAL, 2)

    def work(comm: Any) -> Any:
        mine = tuple(x[comm.rank :: comm.world_size] for x in data)
        metric = feed(sample.make(), tuple(x[:6] for x in mine))
        with synced(metric, comm=comm):
            pass
        sync_and_compute(metric, comm=comm)
        feed(metric, tuple(x[6:] for x in mine))
        return flat(sync_and_compute(metric, comm=comm)), None

    ranks = run(2, work)
    if name == "CatMetric":
        ranks = [([values[0].sort().values], None) for values, _ in ranks]
        data = (data[0].sort().values,)
    if name.startswith("samplewise") or name == "MinMaxMetric":
        return  # one depends on the order of samples, the other on every earlier compute
    check(name, ranks, data)
