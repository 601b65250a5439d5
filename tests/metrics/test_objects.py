"""States that hold no tensors: data is synced, anything else where ``allow_pickle=True`` says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchmetrics import Metric

from distmetrics import MismatchError, StateError, sync_and_compute, synced
from distmetrics.testing import outcomes, run
from tests.backends import both_backends, same_error


class Kept(Metric):
    """Keeps what it is given, in rank order."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("kept", [], dist_reduce_fx=None)

    def update(self, value: Any) -> None:
        self.kept.append(value)

    def compute(self) -> list[Any]:
        return [*self.kept]


class Own:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    __hash__ = None  # type: ignore[assignment]


def kept(comm: Any, values: list[Any], pickling: tuple[int, ...] = ()) -> Any:
    metric = Kept()
    for value in values[comm.rank]:
        metric.update(value)
    return sync_and_compute(metric, allow_pickle=comm.rank in pickling, comm=comm)


DATA = [
    [("RLE", (480, 640), b"\0\xff"), {"boxes": [1.5, 2], "labels": {1, 2}}],
    [],
    [None, True, "text", 2j, torch.int8, torch.Size([3])],
]


@both_backends
def test_lists_of_data(backend: Any) -> None:
    wanted = [item for items in DATA for item in items]
    assert run(3, kept, DATA, backend=backend) == [wanted] * 3


def test_tensors_within_tuples() -> None:
    mask = torch.arange(100_000) % 3 == 0
    for values in run(2, kept, [[("a", mask)], [("b", mask)]]):
        assert [name for name, _ in values] == ["a", "b"]
        assert all(torch.equal(x, mask) for _, x in values)


@both_backends
def test_what_is_no_data_is_refused_on_every_rank(backend: Any) -> None:
    error = same_error(outcomes(3, kept, [[1], [Own()], []], backend=backend), StateError)
    assert error.peers == (1,)
    assert "the state kept cannot be sent: a tests.metrics.test_objects.Own is no plain data" in str(error)
    assert "allow_pickle=True" in str(error)


@both_backends
def test_objects_where_every_rank_says_so(backend: Any) -> None:
    values = [[1], [Own(), (Own(),)], []]
    assert run(3, kept, values, (0, 1, 2), backend=backend) == [[1, Own(), (Own(),)]] * 3


def test_ranks_that_differ_in_the_flag() -> None:
    error = same_error(outcomes(3, kept, DATA, (1,)), MismatchError)
    assert error.peers == (1,)
    assert "rank 1 calls sync of metrics, allow_pickle=True" in str(error)


def test_the_flag_of_a_block() -> None:
    def work(comm: Any) -> Any:
        metric = Kept()
        metric.update(Own())
        with synced(metric, allow_pickle=True, comm=comm):
            return metric.compute()

    assert run(2, work) == [[Own(), Own()]] * 2


# -- attributes that hold themselves


class Recursive(Metric):
    """An update sets an attribute that is no state."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, value: Any) -> None:
        self.total += 1
        self.seen = value

    def compute(self) -> Any:
        return self.total


def in_itself() -> list[Any]:
    value: list[Any] = []
    value += [value, value]
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(150):
        value = [value]
    return value


@pytest.mark.parametrize("make", [in_itself, deep])
def test_an_attribute_that_a_rank_needs_and_that_cannot_be_sent(make: Any) -> None:
    """It ended in a RecursionError on that rank, and the others waited for it."""

    def work(comm: Any) -> Any:
        metric = Recursive()
        if comm.rank == 0:
            metric.update(make())
        return sync_and_compute(metric, comm=comm)

    error = same_error(outcomes(2, work), StateError)
    assert error.peers == (0,)


def test_an_attribute_that_holds_itself_on_every_rank() -> None:
    """Nobody needs it, so nothing is sent of it."""

    def work(comm: Any) -> Any:
        metric = Recursive()
        metric.update(in_itself())
        return float(sync_and_compute(metric, comm=comm))

    assert run(2, work) == [2.0, 2.0]
