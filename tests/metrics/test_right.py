"""The value over all ranks is what one process that saw all the data would have computed, however it is shared."""

from __future__ import annotations

import itertools
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distmetrics import explain, sync_and_compute, synced
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator
from tests.metrics import test_torcheval
from tests.metrics.samples import SAMPLES, batches, flat, lists_follow, same, shard, states

# What the libraries say of metrics that keep all data, and of a rank that computes before it has updated.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
TOTAL = 24


@st.composite
def partitions(draw: st.DrawFn) -> list[int]:
    """Where the data is cut for 1 to 4 ranks; equal cuts leave a rank without data."""
    world_size = draw(st.integers(1, 4))
    inner = draw(st.lists(st.integers(0, TOTAL), min_size=world_size - 1, max_size=world_size - 1))
    return [0, *sorted(inner), TOTAL]


def halves(part: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
    """Up to two batches; a rank without data has none."""
    rows = len(part[0])
    cuts = [0, rows // 2, rows]
    return [tuple(x[start:stop] for x in part) for start, stop in itertools.pairwise(cuts) if stop > start]


def feed(metric: Any, part: tuple[torch.Tensor, ...]) -> Any:
    for batch in halves(part):
        metric.update(*batch)
    return metric


def on_rank(comm: Any, name: str, data: tuple[torch.Tensor, ...], cuts: list[int], other_way: Any = nullcontext) -> Any:
    """Return value and collectives; a sync half-way changes nothing, nor does another at the end."""
    metric, mine = SAMPLES[name].make(), halves(shard(data, cuts, comm.rank))
    for batch in mine[:1]:
        metric.update(*batch)
    with synced(metric, comm=comm):
        pass
    for batch in mine[1:]:
        metric.update(*batch)
    if SAMPLES[name].shares:
        with synced(metric, comm=comm):
            pass
    modules = torch.nn.ModuleList([metric])
    before = states(modules)
    record = RecordingCommunicator(comm)
    value = sync_and_compute(metric, comm=record)
    assert states(modules) == before
    with other_way():
        again = sync_and_compute(metric, comm=comm)
    assert same(flat(again), flat(value))
    return flat(value), [call.op for call in record.calls]


def check(name: str, ranks: list[Any], data: tuple[torch.Tensor, ...]) -> None:
    for value, _ in ranks:
        assert same(value, ranks[0][0]), "ranks differ"
    for got, wanted in zip(ranks[0][0], flat(feed(SAMPLES[name].make(), data).compute()), strict=True):
        if name == "CatMetric":
            wanted = wanted.reshape(got.shape)
        assert got.shape == wanted.shape
        if wanted.is_floating_point():
            torch.testing.assert_close(got, wanted, rtol=5e-6, atol=1e-6, equal_nan=True, check_dtype=True)
        else:
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=12)
@given(cuts=partitions(), seed=st.integers(0, 3), ride=st.booleans())
def test_any_partition_gives_the_value_of_one_process(name: str, cuts: list[int], seed: int, ride: bool) -> None:
    """Any cuts, ranks without data included; bitwise equal on all ranks; one round, and one more if lists follow."""
    data = batches(SAMPLES[name], TOTAL, seed)
    with nullcontext() if ride else lists_follow():
        ranks = run(len(cuts) - 1, on_rank, name, data, cuts)
    check(name, ranks, data)
    rounds = 1 if ride else SAMPLES[name].rounds
    rounds += SAMPLES[name].lends and len({*cuts}) < len(cuts)
    assert [len(ops) for _, ops in ranks] == [rounds if len(cuts) > 2 else 0] * (len(cuts) - 1)


CUTS, COUNTS = [0, 5, 5, TOTAL], [2, 0, 1]


def everything(comm: Any) -> tuple[dict[str, Any], ...]:
    ours = {name: on_rank(comm, name, batches(SAMPLES[name], TOTAL, 1), CUTS, lists_follow) for name in SAMPLES}
    return ours, test_torcheval.on_rank(comm, COUNTS)


@pytest.mark.gloo
def test_real_processes_give_the_same() -> None:
    """The samples of both zoos in one start, with a rank without data; lists ride along, and follow."""
    ours, merging = zip(*run(3, everything, backend="gloo"), strict=True)
    for name in SAMPLES:
        check(name, [rank[name] for rank in ours], batches(SAMPLES[name], TOTAL, 1))
    test_torcheval.check(COUNTS, merging)


@pytest.mark.parametrize("rounds", [1, 2])
def test_metrics_together_cost_no_more_than_one(rounds: int) -> None:
    """All samples of one kind in one sync: one round, two where lists follow; the values are those of each alone."""
    names = [name for name, sample in SAMPLES.items() if sample.rounds <= rounds and not sample.lends]
    cuts = [0, 0, 9, TOTAL]

    def together(comm: Any) -> Any:
        parts = {name: shard(batches(SAMPLES[name], TOTAL, 1), cuts, comm.rank) for name in names}
        metrics = {name: feed(SAMPLES[name].make(), part) for name, part in parts.items()}
        record = RecordingCommunicator(comm)
        assert comm.rank == 0 or explain(metrics, world_size=3).cost.rounds == rounds
        values = sync_and_compute(metrics, comm=record)
        return {name: flat(value) for name, value in values.items()}, len(record.calls)

    with lists_follow():
        ranks = run(3, together)
    assert [count for _, count in ranks] == [rounds] * 3
    for name in names:
        check(name, [(values[name], None) for values, _ in ranks], batches(SAMPLES[name], TOTAL, 1))


def test_no_data_anywhere_is_what_one_process_without_data_gets() -> None:
    """No update on any rank: the default state, or the metric's own error; never a hang, and state as before."""

    def outcome(compute: Any) -> Any:
        try:
            return flat(compute())
        except Exception as error:  # noqa: BLE001  (whatever the metric raises)
            return [type(error).__name__]

    def work(comm: Any) -> Any:
        found = {}
        for name, sample in SAMPLES.items():
            metric = torch.nn.ModuleList([sample.make()])
            before = states(metric)
            found[name] = outcome(lambda metric=metric: sync_and_compute(metric[0], comm=comm))
            assert states(metric) == before, name
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "compute before update" is torchmetrics' to say
        ranks = run(2, work)
        for name, sample in SAMPLES.items():
            assert all(same(found[name], outcome(sample.make().compute)) for found in ranks), name
