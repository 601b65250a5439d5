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


def planned(per_rank: list[list[StateEntry]], rank: int = 0, capacity: int = CAPACITY) -> SyncPlan:
    """The plan of ranks with these states."""
    blobs = [Header("sync of metrics", body=encode(SyncSchema((), tuple(each)))).encode() for each in per_rank]
    paths = dict.fromkeys(entry.path.removesuffix(entry.piece) for each in per_rank for entry in each)
    return plan(tuple(blobs), tuple(paths), rank, capacity)


def entry(path: str, dtype: str, shape: tuple[int, ...], kind: Any) -> StateEntry:
    return StateEntry(path, dtype, shape, kind=kind)


def test_reduced_states_of_one_kind_and_dtype_share_a_bucket() -> None:
    """However many there are, one operation reduces them; what does not fit goes in rounds of its own."""
    leaves = [*[entry(f"m{index}", "int64", (3,), "sum") for index in range(50)], entry("high", "float32", (), "max")]
    agreed = planned([leaves, leaves])
    assert [(bucket.key, len(bucket.shapes)) for bucket in agreed.agreed.layout.buckets] == [("sum", 50), ("max", 1)]
    assert agreed.cost.rounds == 1
    leaves = [
        entry("a", "int64", (10,), "sum"),
        entry("b", "float32", (10,), "max"),
        entry("c", "float32", (9,), "stack"),
    ]
    assert planned([leaves, leaves], capacity=64).cost.rounds == 1 + 1 + 2  # maxima of floats take two: NaN apart
    assert not planned([leaves, []], capacity=64).is_inline


@pytest.mark.parametrize(
    ("per_rank", "dtype", "ranks"),
    [
        ([("float32", (2,), "mean"), None, ("float32", (2,), "mean")], torch.float32, (0, 2)),
        ([("float32", (), "sum"), ("float64", (), "sum")], torch.float64, (0, 1)),
        # the filler of a rank without rows is float32
        ([("float32", (0,), "cat"), ("int64", (3, 2), "cat")], torch.int64, (1,)),
        ([("float32", (2,), "sum"), ("float32", (3,), "sum")], None, ()),
        ([("float32", (2, 3), "cat"), ("float32", (2, 4), "cat")], None, ()),
        ([("float32", (2,), "sum"), ("float32", (2,), "max")], None, ()),
        ([("uint8", (9,), "object"), ("float32", (2,), "items")], None, ()),
    ],
)
def test_who_contributes_in_which_dtype_and_what_does_not_go_together(per_rank: Any, dtype: Any, ranks: Any) -> None:
    """A mean of defaults, or a stack of them, would be wrong; dtypes are promoted."""
    entries = [[entry("m", *each)] if each else [] for each in per_rank]
    if dtype is None:
        with pytest.raises(MismatchError, match="the state m ") as caught:
            planned(entries, rank=1)
        assert (caught.value.rank, caught.value.peers) == (1, (0, 1))
    else:
        agreed = planned(entries).states["m"]
        assert (agreed.dtype, agreed.ranks) == (dtype, ranks)


def test_pieces_that_there_is_no_memory_for_are_refused() -> None:
    """Each rank has another piece of the state, and one tells of more than an address can reach."""

    def combined(comm: Any) -> str:
        paths = [f"x{number}" for number in range(64)]
        states = [
            [StateEntry(f"{x} {r}", "float64", (1 + r * 2**39,), kind="sum", piece=f" {r}") for x in paths]
            for r in range(2)
        ]
        none, own = torch.empty(0, dtype=torch.uint8), torch.zeros(8 * len(paths), dtype=torch.uint8)
        with pytest.raises(InputError) as refused:
            combine(planned(states, comm.rank), [(none, none)] * 2, own, comm)
        return str(refused.value)

    assert all("has no memory" in text for text in run(2, combined))


KINDS = {"sum": torch.int64, "mean": torch.float32, "max": torch.float32, "min": torch.bfloat16}


class Large(Metric):
    """States too large to ride along, of every reduced kind."""

    def __init__(self) -> None:
        super().__init__()
        for kind, dtype in KINDS.items():
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

    numbers = [1.0, 2.0, 3.0] if empty is None else [1.0, 3.0]
    found = [sum(numbers), 2.0, 3.0, 1.0, 1.0, 2.0]  # of the flag any
    assert run(3, work) == [[*zip([*KINDS.values(), torch.bool, torch.float32], found, strict=True)]] * 3
