"""torcheval metrics: every rank gets the bits of one metric that merged the ranks' states in rank order."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, deque
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torchmetrics as tm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from distmetrics import sync_and_compute, synced
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.metrics.adapters.torcheval import TorchevalAdapter
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator
from tests.metrics.samples import flat, lists_follow
from tests.metrics.torcheval_samples import FEW, SAMPLES, UPDATES, Batch, batches, fed, te

# What the libraries say of a rank that computes without data, and what torch says of what torcheval uses.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
NAME = "BinaryAUROC binary []"


def same(one: Any, other: Any) -> bool:
    """Bitwise, of equal types, whatever it is."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or one != one  # NaN


def attributes(metric: Any) -> dict[str, Any]:
    """Copy all that a metric holds; modules are compared as they are."""
    return {k: v if isinstance(v, nn.Module) else copy.deepcopy(v) for k, v in vars(metric).items() if not callable(v)}


def outcome(compute: Any) -> Any:
    """A value, or the kind of the metric's own error: some raise when there is no data."""
    try:
        return compute()
    except Exception as error:  # noqa: BLE001  (whatever the metric raises)
        return type(error).__name__


def merged(name: str, shards: list[list[Batch]]) -> Any:
    """Compute what one metric does that merged all ranks', as torcheval's own tests have it."""
    first, *others = [fed(name, shard) for shard in shards]
    for metric in (first, *others) if others else ():
        metric._prepare_for_merge_state()
    if others:
        first.merge_state(others)
    return outcome(first.compute)


def on_rank(comm: Any, name: str, counts: list[int]) -> tuple[Any, list[str]]:
    """Sync twice; nothing of the metric may have changed, and it must go on as if nothing had happened."""
    metric = fed(name, batches(name, counts)[comm.rank])
    before = attributes(metric)
    record = RecordingCommunicator(comm)
    value = outcome(lambda: sync_and_compute(metric, comm=record))
    assert same(attributes(metric), before)
    assert same(outcome(lambda: sync_and_compute(metric, comm=comm)), value)
    return value, [call.op for call in record.calls]


def check(name: str, counts: list[int], ranks: list[Any]) -> None:
    shards = batches(name, counts)
    wanted = merged(name, shards)
    for value, _ in ranks:
        assert same(value, wanted), f"{name} {counts}: {value} is not {wanted}"
    whole = outcome(lambda: fed(name, [batch for shard in shards for batch in shard]).compute())
    if SAMPLES[name].whole and not isinstance(whole, str):
        for got, single in zip(flat(ranks[0][0]), flat(whole), strict=True):
            torch.testing.assert_close(got, single, equal_nan=True)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("name", FEW)
def test_the_bits_of_one_metric_that_merged_all(name: str, world_size: int) -> None:
    """And within tolerance the value of one metric that saw all the data; one collective, or two if states follow."""
    for index, (kind, updates) in enumerate(UPDATES.items()):
        counts = updates(world_size)
        with lists_follow() if index % 2 else nullcontext():
            ranks = run(world_size, on_rank, name, counts)
        check(name, counts, ranks)
        assert [len(ops) for _, ops in ranks] == [(1 + index % 2) if world_size > 1 else 0] * world_size, kind


@pytest.mark.parametrize("name", ["WindowedBinaryAUROC", "PerKey values []"])
@settings(max_examples=20)
@given(counts=st.lists(st.integers(0, 5), min_size=2, max_size=5))
def test_any_number_of_updates(name: str, counts: list[int]) -> None:
    """Windows overflow on some ranks and not on others; keys come on some ranks only."""
    check(name, counts, run(len(counts), on_rank, name, counts))


def test_everything_together_in_one_collective() -> None:
    """All torcheval samples with torchmetrics ones in one dict; values are those of each alone."""
    counts = [2, 0, 1]

    def work(comm: Any) -> Any:
        metrics = {name: fed(name, batches(name, counts)[comm.rank]) for name in SAMPLES}
        ours = {"sum": tm.SumMetric(), "cat": tm.CatMetric(), "f1": tm.classification.BinaryF1Score()}
        ours["sum"].update(comm.rank + 1.0)
        if comm.rank:
            ours["cat"].update(torch.arange(comm.rank))
        record = RecordingCommunicator(comm)
        return sync_and_compute({"eval": metrics, "metrics": ours}, comm=record), len(record.calls)

    for values, rounds in run(3, work):
        assert rounds == 1  # lists of a few numbers ride along
        assert (values["metrics"]["sum"], values["metrics"]["cat"].tolist()) == (6.0, [0.0, 0.0, 1.0])
        for name in SAMPLES:
            assert same(values["eval"][name], merged(name, batches(name, counts))), name


# -- local state


@pytest.mark.parametrize("world_size", [1, 3])
def test_what_a_block_and_computing_leave_behind_is_undone(world_size: int) -> None:
    class Fails(te.BinaryAUROC):
        def compute(self) -> Tensor:
            self.inputs[0] += 1  # changes what it sees, and fails
            self.found = True
            raise ZeroDivisionError("no positives")

    def work(comm: Any) -> Any:
        metric = Fails()
        for args, kwargs in batches(NAME, [2, 2, 2])[comm.rank]:
            metric.update(*args, **kwargs)
        items, before = metric.inputs, attributes(metric)
        with pytest.raises(ZeroDivisionError, match="no positives"):
            sync_and_compute(metric, comm=comm)
        with synced(metric, comm=comm):
            assert sum(map(torch.numel, metric.inputs)) == 12 * world_size
            metric.update(torch.rand(2), torch.tensor([0, 1]))
        assert metric.inputs is items
        assert same(attributes(metric), before)

    run(world_size, work)


# -- what travels


def test_tensors_in_a_default_may_be_on_any_device() -> None:
    texts = []
    for device in ("cpu", "meta"):
        metric = te.Sum()
        metric._add_state("rows", [torch.zeros(2, device=device)])
        texts.append(TorchevalAdapter().signature(metric))
    assert texts == ["weighted_sum float64[], rows list[1]"] * 2


def test_freezing_keeps_everything() -> None:
    """Nested containers, numbers, tensors of any dtype and layout of memory."""
    shared = torch.arange(6).reshape(2, 3).t()
    value = {
        "deque": deque([1, 2], maxlen=3),
        "numbers": (1, 2.5, float("inf"), True, None, 2**70),
        3: [shared, shared, torch.tensor(1.0 + 2j), torch.zeros(0, 4), torch.tensor(True), torch.tensor(-0.0)],
        "half": torch.tensor([1.5], dtype=torch.bfloat16).expand(3).clone(),
        "kinds": [{1, "a"}, frozenset((b"\0", None)), Counter("aab"), OrderedDict(b=1, a=2), 2 - 1j, b"\xff"],
        "torch": (torch.Size([2, 3]), torch.bfloat16),
    }
    again = deserialize(serialize(value))
    assert again.pop("torch") == value["torch"]
    assert again.pop("kinds") == value.pop("kinds")
    assert type(value.pop("torch")[0]) is torch.Size
    assert torch.equal(again.pop("half"), value.pop("half"))  # numpy has no bfloat16
    assert same(again, value)
    assert again["deque"].maxlen == 3


def test_what_is_deserialized_has_memory_of_its_own() -> None:
    """And the run that it came from may start anywhere."""
    run = serialize([torch.arange(3.0, dtype=torch.float64), 7])
    odd = torch.cat([torch.zeros(3, dtype=torch.uint8), run])[3:]
    deserialize(run)[0].zero_()
    for run_of_bytes in (run, odd):
        assert same(deserialize(run_of_bytes), [torch.arange(3.0, dtype=torch.float64), 7])
