"""What updating sets and is no state: a rank without data has it while the state of all ranks is in, and no longer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics as tm
from torch import Tensor, nn

from distmetrics import StateError, sync_and_compute, synced
from distmetrics.collectives.header import Header
from distmetrics.comm.communicator import Communicator
from distmetrics.metrics.attributes import agreed, described
from distmetrics.metrics.metric_set import digest_of
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import same_error
from tests.metrics import attribute_samples as own
from tests.metrics.attribute_samples import SAMPLES
from tests.metrics.samples import flat

pytestmark = pytest.mark.filterwarnings("ignore:Metric `.*` will save all")
HAVE = {  # which ranks have data
    "first": lambda rank, size: rank == 0,
    "not the first": lambda rank, size: rank != 0,
    "middle one": lambda rank, size: rank == size // 2,
    "all": lambda rank, size: True,
}


def filled(name: str, ranks: list[int]) -> Any:
    metric = SAMPLES[name].make()
    for rank in ranks:
        SAMPLES[name].feed(metric, torch.Generator().manual_seed(rank))
    return metric


def attributes(metric: torch.nn.Module) -> list[dict[str, Any]]:
    """All that the modules hold, the tensors' bits among it."""
    hidden = "_state_is_copy"  # a collection's flag that looking at its members changes
    return [{name: _frozen(x) for name, x in vars(module).items() if name != hidden} for module in metric.modules()]


def _frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.detach().numpy().tobytes()
    if isinstance(value, list):
        return [_frozen(item) for item in value]
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return value


def on_rank(comm: Any, name: str, have: str) -> Any:
    metric = filled(name, [comm.rank] if HAVE[have](comm.rank, comm.world_size) else [])
    before = attributes(metric)
    record = RecordingCommunicator(comm)
    values = [flat(sync_and_compute(metric, comm=record)), flat(sync_and_compute(metric, comm=comm))]
    assert all(map(torch.equal, *values))
    assert attributes(metric) == before
    with synced(metric, comm=comm) as plan:
        assert plan is None or plan.cost.rounds == len(record.calls)
    return values[0], len(record.calls)


def check(name: str, have: str, ranks: list[Any]) -> None:
    wanted = flat(filled(name, [r for r in range(len(ranks)) if HAVE[have](r, len(ranks))]).compute())
    for values, _ in ranks:
        for got, value in zip(values, wanted, strict=True):
            assert got.dtype == value.dtype
            torch.testing.assert_close(got, value, rtol=1e-5, atol=1e-6, equal_nan=True)
        assert all(map(torch.equal, values, ranks[0][0]))
    if len(ranks) > 1:
        assert {count for _, count in ranks} == {1 if have == "all" else SAMPLES[name].rounds}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize(("have", "size"), [(have, size) for have in HAVE for size in (2, 3)] + [("all", 1)])
def test_ranks_without_data_compute_what_one_process_does(name: str, have: str, size: int) -> None:
    """The same bits on every rank; all attributes of every module are as before, or absent as before."""
    check(name, have, run(size, on_rank, name, have))


def test_attributes_from_before_a_reset_do_not_count() -> None:
    def work(comm: Any) -> int:
        metric = own.Own()
        metric.update(torch.ones(2, 3 + comm.rank))
        if comm.rank == 1:
            metric.reset()
        with synced(metric, comm=comm):
            width = metric.width
        assert metric.width == 3 + comm.rank
        return width

    assert run(2, work) == [3, 3]


@pytest.mark.parametrize("world_size", [1, 2])
def test_it_is_absent_again_when_computing_fails_and_after_a_block(world_size: int) -> None:
    def work(comm: Any) -> None:
        metric, empty = own.Raises(), own.Own()
        if comm.rank == 0:
            metric.update(torch.ones(2, 3))
        before = attributes(metric)
        with pytest.raises(ZeroDivisionError, match="3"):
            sync_and_compute(metric, comm=comm)
        assert attributes(metric) == before
        with synced(empty, comm=comm):
            empty.update(torch.ones(2, 3))
            assert empty.width == 3
        assert "width" not in vars(empty)

    run(world_size, work)


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_no_data_anywhere() -> None:
    """Nobody has it: the metric's own error, on every rank."""
    for outcome in outcomes(2, lambda comm: sync_and_compute(own.Own(), comm=comm)):
        assert isinstance(outcome.error, AttributeError)


@pytest.mark.parametrize(("make", "name"), [(own.Adds, "samples"), (own.Own, "width")])
def test_what_differs_is_refused_and_what_accumulates_on_one_rank_is_that_of_all(make: Any, name: str) -> None:
    """A value of one rank would be wrong without a word; every rank hears what to do."""

    def work(comm: Any, have: tuple[int, ...]) -> Any:
        metric = make()
        if comm.rank in have:
            metric.update(torch.ones(2 + comm.rank, 3 + comm.rank))
        return float(sync_and_compute({"m": metric}, comm=comm, name="val")["m"])

    error = same_error(outcomes(3, work, (0, 1)), StateError)
    why = "is no state, differs between ranks with data, and is missing on ranks without data"
    assert str(error).splitlines()[0] == f'sync of metrics "val": the attribute m.{name} {why}'
    assert error.per_rank[2] == "no update"
    assert error.per_rank[1] == f"{name} = {4 if make is own.Own else 3}"
    assert f'self.add_state("{name}"' in error.do
    assert error.peers == (0, 1)
    assert run(3, work, (1,)) == [3.0 if make is own.Own else 4.0] * 3


def nested(times: int) -> list[Any]:
    """Return a list that holds itself, or lists in lists."""
    value: list[Any] = []
    if times == 0:
        value += [value, value]
    for _ in range(times):
        value = [value]
    return value


class Last(tm.Metric):
    """Keeps what it has seen: a column of one element with a stride, containers, a shape, a large tensor, anything."""

    def __init__(self, large: int = 0) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), "sum")
        self.names: dict[str, int] = {}
        self.shape = torch.Size()
        self.large = torch.zeros(large)

    def update(self, x: Tensor, **more: Any) -> None:
        self.total += x.sum()
        self.last = x[:, 1]
        self.names = {"rows": len(x)}
        self.shape = x.shape
        self.large = self.large + 1
        for name, value in more.items():
            setattr(self, name, value)

    def compute(self) -> Tensor:
        return self.total / self.names["rows"] / self.shape.numel() + self.large.sum() + self.last.sum()


def last(comm: Communicator, have: tuple[int, ...], large: int = 0, more: Any = None) -> float:
    metric = Last(large)
    if comm.rank in have:
        metric.update(torch.ones(1, 2), **(more or {}))
    return float(sync_and_compute(metric, comm=comm))


def test_containers_shapes_and_columns_are_borrowed_or_compared() -> None:
    assert run(2, last, (1,)) == [2.0] * 2
    assert run(2, last, (0, 1)) == [3.0] * 2


@pytest.mark.parametrize(
    ("large", "more", "told"),
    [
        (20_000, {}, "large"),
        (0, {"scale": nn.Parameter(torch.ones(1))}, "scale"),
        (0, {"net": nn.Identity()}, "net"),
        (0, {"function": print}, "function"),
        (0, {"itself": nested(0)}, "itself"),
        (0, {"deep": nested(150)}, "deep"),
    ],
    ids=["large", "parameter", "module", "function", "itself", "deep"],
)
def test_what_cannot_be_sent(large: int, more: dict[str, Any], told: str) -> None:
    """No error where every rank has its own; where one lacks it, every rank is told."""
    run(2, last, (0, 1), large, more)
    error = same_error(outcomes(3, last, (0, 1), large, more), StateError)
    assert f"the attribute {told} is no state, cannot be sent, and is missing on ranks without data" in str(error)


@pytest.mark.parametrize(
    "value",
    [np.arange(4)[::-1], np.arange(4, dtype=">i4"), np.float64(2.5), np.broadcast_to(1.0, (3, 2)), np.arange(20_000)],
    ids=["reversed", "big-endian", "scalar", "read-only", "large"],
)
def test_arrays_of_any_kind_are_told_apart(value: Any) -> None:
    """Every sync describes them: one that torch cannot hold must not end it on one rank."""
    assert digest_of({"x": value}) == digest_of({"x": value.copy()}) != digest_of({"x": value + 1})


def chosen(*per_rank: Any, updated: tuple[int, ...]) -> Any:
    """What is borrowed of the attribute x; None stands for a rank that has none."""
    columns = [{} if value is ABSENT else {"x": described(value)} for value in per_rank]
    return agreed("m", columns, updated, Header("sync of metrics"), 0)


ABSENT = object()
SOME = torch.arange(3.0)


@pytest.mark.parametrize(
    ("per_rank", "updated", "value"),
    [
        ((3, 3, ABSENT), (0, 1), 3),
        ((3, 3, 0), (0, 1), 3),
        ((ABSENT, torch.float16), (1,), torch.float16),
        (((1, [2.0, "a"]), None), (0,), (1, [2.0, "a"])),
        ((torch.Size([2]), torch.Size([3])), (0,), torch.Size([2])),
        ((SOME, SOME.clone(), ABSENT), (0, 1), SOME),
        ((float("nan"), float("nan"), 1.0), (0, 1), float("nan")),
        ((3, 3), (0,), ABSENT),  # what a rank without data has is left
        ((print, str.upper), (0,), ABSENT),
        ((ABSENT, 3), (0,), ABSENT),
    ],
)
def test_what_ranks_with_data_have_alike_is_borrowed(per_rank: Any, updated: tuple[int, ...], value: Any) -> None:
    found = chosen(*per_rank, updated=updated).get("x", ABSENT)
    assert repr(found) == repr(value)
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("per_rank", "updated"),
    [
        ((1, 1.0, 0), (0, 1)),
        ((1, ABSENT, ABSENT), (0, 1)),
        ((SOME, SOME + 1, SOME), (0, 1)),
        ((print, ABSENT), (0,)),
        ((print, None), (0,)),
        ((torch.zeros(20_000), ABSENT), (0,)),
    ],
)
def test_what_nobody_can_borrow_is_refused(per_rank: Any, updated: tuple[int, ...]) -> None:
    with pytest.raises(StateError, match=r"the attribute m\.x is no state, "):
        chosen(*per_rank, updated=updated)
