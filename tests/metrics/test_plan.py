"""The plan is pure: made of headers, equal on all ranks, printable, and it keeps what it promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import Metric, aggregation, classification

from distmetrics import InputError, MismatchError, synced
from distmetrics.collectives.header import Header
from distmetrics.message import encode
from distmetrics.metrics.metric_set import combine
from distmetrics.metrics.plan import StateEntry, SyncPlan, SyncSchema, plan
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator
from tests.metrics.samples import SAMPLES, batches, collection, shard

CAPACITY = 49_152


def made(*states: list[Any], rank: int = 0, capacity: int = CAPACITY) -> SyncPlan:
    """The plan of ranks with these states: path, dtype, shape, kind."""
    blobs = []
    for each in states:
        entries = tuple(StateEntry(*about, "", *kind) for *about, kind in ((*s[:3], s[3:]) for s in each))
        blobs.append(Header("sync of metrics", body=encode(SyncSchema((), entries))).encode())
    blobs = tuple(blobs)
    paths = dict.fromkeys(state[0] for each in states for state in each)
    return plan(blobs, tuple(paths), rank, capacity)


def test_reduced_states_of_one_kind_and_dtype_share_a_bucket() -> None:
    """However many there are, one operation reduces them."""
    leaves = [(f"m{index}", "int64", (3,), "sum") for index in range(50)] + [("high", "float32", (), "max")]
    agreed = made(leaves, leaves)
    assert [(bucket.key, len(bucket.shapes)) for bucket in agreed.agreed.layout.buckets] == [("sum", 50), ("max", 1)]
    assert agreed.cost.rounds == 1


def test_a_rank_without_a_state_is_no_contributor() -> None:
    """A mean of defaults, or a stack of them, would be wrong."""
    leaf = ("m", "float32", (2,), "mean")
    assert made([leaf], [], [leaf]).states["m"].ranks == (0, 2)


def test_dtypes_are_promoted_not_refused() -> None:
    """A rank that saw only integers may hold its sum in another dtype."""
    agreed = made([("m", "float32", (), "sum")], [("m", "float64", (), "sum")])
    assert agreed.states["m"].dtype == torch.float64


def test_an_empty_list_rank_does_not_decide_the_dtype() -> None:
    """The filler of a rank without rows is float32, whatever the others hold."""
    agreed = made([("m", "float32", (0,), "cat")], [("m", "int64", (3, 2), "cat")])
    assert (agreed.states["m"].dtype, agreed.states["m"].ranks) == (torch.int64, (1,))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("m", "float32", (2,), "sum"), ("m", "float32", (3,), "sum")),
        (("m", "float32", (2, 3), "cat"), ("m", "float32", (2, 4), "cat")),
        (("m", "float32", (2,), "sum"), ("m", "float32", (2,), "max")),
        (("m", "uint8", (9,), "object"), ("m", "float32", (2,), "items")),
    ],
)
def test_states_that_do_not_go_together_are_refused(one: Any, other: Any) -> None:
    """The text shows the state on every rank."""
    with pytest.raises(MismatchError, match="the state m ") as caught:
        made([one], [other], rank=1)
    assert caught.value.rank == 1
    assert caught.value.peers == (0, 1)


def test_what_does_not_fit_goes_in_rounds_of_its_own() -> None:
    """Also where only one rank's own run is too long for the first round."""
    leaves = [("a", "int64", (10,), "sum"), ("b", "float32", (10,), "max"), ("c", "float32", (10,), "stack")]
    assert made(leaves, leaves, capacity=64).cost.rounds == 1 + 1 + 2  # maxima of floats take two: NaN apart
    assert not made(leaves, [], capacity=64).is_inline


def test_pieces_that_there_is_no_memory_for_are_refused() -> None:
    """Each rank has another piece of the state, and one tells of more than an address can reach."""

    def combined(comm: Any) -> str:
        paths = [f"x{number}" for number in range(64)]
        blobs = []
        for r in range(2):
            states = [StateEntry(f"{x} {r}", "float64", (1 + r * 2**39,), kind="sum", piece=f" {r}") for x in paths]
            blobs.append(Header("sync of metrics", body=encode(SyncSchema((), tuple(states)))).encode())
        none, own = torch.empty(0, dtype=torch.uint8), torch.zeros(8 * len(paths), dtype=torch.uint8)
        with pytest.raises(InputError) as refused:
            combine(plan(tuple(blobs), tuple(paths), comm.rank, CAPACITY), [(none, none)] * 2, own, comm)
        return str(refused.value)

    assert all("has no memory" in text for text in run(2, combined))


def test_the_plan_can_be_read() -> None:
    """``print(plan.describe())`` is how a user sees where bytes and rounds go."""
    leaves = [("a", "int64", (3,), "sum"), ("b", "float32", (10_000, 2), "cat")]
    text = made(leaves, leaves[:1], [leaves[0], ("b", "float32", (2, 2), "cat")]).describe()
    assert text.splitlines()[0].endswith("3 ranks, 2 collectives")
    assert "sum   int64       1 tensors" in text
    assert "lists and rows of up to 80000 bytes a rank  in the second round" in text


@settings(max_examples=25, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(SAMPLES)), min_size=1, max_size=4, unique=True),
    cuts=st.lists(st.integers(0, 16), min_size=2, max_size=2).map(lambda inner: [0, *sorted(inner), 16]),
)
@pytest.mark.filterwarnings("ignore:Metric `.*` will save all targets")
def test_rounds_are_as_planned_and_equal_on_all_ranks(names: list[str], cuts: list[int]) -> None:
    """The transcript of every rank is the same, and as long as the plan says: no rank can be left waiting."""

    def work(comm: Any) -> Any:
        metrics = {}
        for name in names:
            metrics[name] = SAMPLES[name].make()
            part = shard(batches(SAMPLES[name], 16, 1), cuts, comm.rank)
            if len(part[0]):
                metrics[name].update(*part)
        record = RecordingCommunicator(comm)
        with synced(metrics, comm=record) as made_plan:
            assert made_plan is not None
            return list(record.calls), made_plan.cost.rounds, made_plan.describe()

    ranks = run(3, work)
    assert len({(tuple(call.op for call in calls), rounds, text) for calls, rounds, text in ranks}) == 1
    assert len(ranks[0][0]) == ranks[0][1]


class Large(Metric):
    """States too large to ride along, of every reduced kind."""

    def __init__(self) -> None:
        super().__init__()
        kinds = {"sum": torch.int64, "mean": torch.float32, "max": torch.float32, "min": torch.bfloat16}
        for kind, dtype in kinds.items():
            self.add_state(kind, torch.zeros(20_000, dtype=dtype), dist_reduce_fx=kind)
        self.add_state("flag", torch.zeros(60_000, dtype=torch.bool), dist_reduce_fx="sum")
        self.add_state("stack", torch.zeros(20_000), dist_reduce_fx=None)

    def update(self, x: int) -> None:
        for name in self._defaults:
            state = getattr(self, name)
            setattr(self, name, state | bool(x) if state.dtype == torch.bool else state + x)

    def compute(self) -> Any:
        return [(getattr(self, name).dtype, getattr(self, name).float().mean().item()) for name in self._defaults]


@pytest.mark.parametrize("empty", [None, 1])
def test_large_states_of_every_kind(empty: int | None) -> None:
    """Reduced by the transport, with a rank that has nothing to add."""

    def work(comm: Any) -> Any:
        metric = Large()
        if comm.rank != empty:
            metric.update(comm.rank + 1)
        record = RecordingCommunicator(comm)
        with synced(metric, comm=record) as made_plan:
            assert made_plan is not None
            assert len(record.calls) == made_plan.cost.rounds
            return metric.compute()

    values = [1.0, 2.0, 3.0] if empty is None else [1.0, 3.0]
    mean = sum(values) / len(values)
    wanted = [
        (torch.int64, sum(values)),
        (torch.float32, mean),
        (torch.float32, 3.0),
        (torch.bfloat16, 1.0),
        (torch.bool, 1.0),
        (torch.float32, mean),
    ]
    assert run(3, work) == [wanted] * 3


def test_collections_of_any_size_are_one_round() -> None:
    """The number of metrics does not show in the number of collectives."""

    def work(comm: Any) -> list[int]:
        found = []
        for count in (1, 5, 20):
            metrics = [collection(False) for _ in range(count)]
            for each in metrics:
                each.update(*batches(SAMPLES["MulticlassAccuracy"], 4 + comm.rank, 1))
            record = RecordingCommunicator(comm)
            with synced(metrics, comm=record):
                found.append(len(record.calls))
        return found

    assert run(2, work) == [[1, 1, 1]] * 2


def test_binned_curves_ride_along() -> None:
    """Their states are counts of a fixed size, unlike those of exact curves."""

    def work(comm: Any) -> list[int]:
        rounds = []
        for thresholds in (50, None):
            metric = classification.BinaryPrecisionRecallCurve(thresholds=thresholds)
            metric.update(torch.rand(3000 + comm.rank), torch.ones(3000 + comm.rank, dtype=torch.long))
            with synced([metric, aggregation.SumMetric()], comm=comm) as made_plan:
                assert made_plan is not None
                rounds.append(made_plan.cost.rounds)
        return rounds

    assert run(2, work) == [[1, 2]] * 2
