"""The plan is pure: made of headers, equal on all ranks, printable, and it keeps what it promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchmetrics import Metric

from distmetrics import InputError, MismatchError, synced
from distmetrics.collectives.header import Header
from distmetrics.message import encode
from distmetrics.metrics.metric_set import combine
from distmetrics.metrics.plan import StateEntry, SyncPlan, SyncSchema, plan
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator

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


@pytest.mark.parametrize(
    ("states", "dtype", "ranks"),
    [
        ([[("m", "float32", (2,), "mean")], [], [("m", "float32", (2,), "mean")]], torch.float32, (0, 2)),
        ([[("m", "float32", (), "sum")], [("m", "float64", (), "sum")]], torch.float64, (0, 1)),
        # the filler of a rank without rows is float32
        ([[("m", "float32", (0,), "cat")], [("m", "int64", (3, 2), "cat")]], torch.int64, (1,)),
    ],
)
def test_who_contributes_and_in_which_dtype(states: Any, dtype: torch.dtype, ranks: tuple[int, ...]) -> None:
    """A mean of defaults, or a stack of them, would be wrong; dtypes are promoted."""
    agreed = made(*states).states["m"]
    assert (agreed.dtype, agreed.ranks) == (dtype, ranks)


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
