"""torcheval metrics: every rank gets the bits of one metric that merged the ranks' states in rank order."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, deque
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from distmetrics import sync_and_compute
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.metrics.adapters.torcheval import TorchevalAdapter
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator
from tests.metrics.samples import flat, lists_follow
from tests.metrics.torcheval_samples import SAMPLES, UPDATES, Batch, batches, fed, te

# What the libraries say of a rank that computes without data, and what torch says of what torcheval uses.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


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


def on_rank(comm: Any, counts: list[int], names: Any = SAMPLES) -> dict[str, Any]:
    """Sync each sample twice; nothing of it may have changed, and it must go on as if nothing had happened."""
    found = {}
    for name in names:
        metric = fed(name, batches(name, counts)[comm.rank])
        before = attributes(metric)
        record = RecordingCommunicator(comm)
        value = outcome(lambda metric=metric, record=record: sync_and_compute(metric, comm=record))
        assert same(attributes(metric), before), name
        assert same(outcome(lambda metric=metric: sync_and_compute(metric, comm=comm)), value), name
        found[name] = value, len(record.calls)
    return found


def check(counts: list[int], ranks: Any) -> None:
    """And within tolerance the value of one metric that saw all the data."""
    for name in ranks[0]:
        shards = batches(name, counts)
        wanted = merged(name, shards)
        for rank in ranks:
            assert same(rank[name][0], wanted), f"{name} {counts}: {rank[name][0]} is not {wanted}"
        whole = outcome(
            lambda name=name, shards=shards: fed(name, [each for shard in shards for each in shard]).compute()
        )
        if SAMPLES[name].whole and not isinstance(whole, str):
            for got, single in zip(flat(ranks[0][name][0]), flat(whole), strict=True):
                torch.testing.assert_close(got, single, equal_nan=True)


@pytest.mark.parametrize(("kind", "world_size"), [("ragged", 4), ("empty first", 3), ("all but one empty", 2)])
def test_the_bits_of_one_metric_that_merged_all(kind: str, world_size: int) -> None:
    """One collective, or two if states follow."""
    counts, follow = UPDATES[kind](world_size), kind == "empty first"
    with lists_follow() if follow else nullcontext():
        ranks = run(world_size, on_rank, counts)
    check(counts, ranks)
    assert {calls for rank in ranks for _, calls in rank.values()} == {1 + follow}


@settings(max_examples=30)
@given(
    name=st.sampled_from(["WindowedBinaryAUROC", "PerKey values []"]),
    counts=st.lists(st.integers(0, 5), min_size=2, max_size=5),
)
def test_any_number_of_updates(name: str, counts: list[int]) -> None:
    """Windows overflow on some ranks and not on others; keys come on some ranks only."""
    check(counts, run(len(counts), on_rank, counts, [name]))


def test_tensors_in_a_default_may_be_on_any_device() -> None:
    texts = []
    for device in ("cpu", "meta"):
        metric = te.Sum()
        metric._add_state("rows", [torch.zeros(2, device=device)])
        texts.append(TorchevalAdapter().signature(metric))
    assert texts == ["weighted_sum float64[], rows list[1]"] * 2


def test_what_is_serialized_comes_back_in_memory_of_its_own() -> None:
    """Nested containers, numbers, tensors of any dtype and layout of memory, from a run that starts anywhere."""
    shared = torch.arange(6).reshape(2, 3).t()
    value = {
        "deque": deque([1, 2], maxlen=3),
        "numbers": (1, 2.5, float("inf"), True, None, 2**70),
        3: [shared, shared, torch.tensor(1.0 + 2j), torch.zeros(0, 4), torch.tensor(True), torch.tensor(-0.0)],
        "kinds": [{1, "a"}, frozenset((b"\0", None)), Counter("aab"), OrderedDict(b=1, a=2), 2 - 1j, b"\xff"],
        "torch": (torch.Size([2, 3]), torch.bfloat16),
    }
    run = serialize(value)
    odd = torch.cat([torch.zeros(3, dtype=torch.uint8), run])[3:]
    deserialize(run)[3][0].zero_()
    for run_of_bytes in (run, odd):
        again = deserialize(run_of_bytes)
        assert again["deque"].maxlen == 3
        assert type(again["torch"][0]) is torch.Size
        assert again.pop("kinds") == value["kinds"]
        assert again.pop("torch") == value["torch"]
        assert same(again, {name: value[name] for name in again})
    half = torch.tensor([1.5], dtype=torch.bfloat16).expand(3).clone()  # of which numpy has no such dtype
    assert torch.equal(deserialize(serialize(half)), half)
