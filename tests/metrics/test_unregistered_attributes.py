"""What updating sets and is no state: a rank without data has it while the state of all ranks is in, and no longer.

That the values are those of one process is in ``test_right``.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from distmetrics import StateError, sync_and_compute, synced
from distmetrics.collectives.header import Header
from distmetrics.metrics.attributes import agreed, described
from distmetrics.metrics.metric_set import digest_of
from distmetrics.testing import outcomes, run
from tests.backends import same_error
from tests.metrics.samples import Own, states


class Adds(Own):
    """Counts in an attribute: what one process has is the sum, but nobody says so."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0

    def update(self, x: Tensor) -> None:
        super().update(x)
        self.samples += len(x)

    def compute(self) -> Tensor:
        return self.total / self.samples


class Raises(Own):
    def compute(self) -> Tensor:
        raise ZeroDivisionError(self.width)


def test_attributes_from_before_a_reset_do_not_count() -> None:
    def work(comm: Any) -> int:
        metric = Own()
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
    """Where nobody has it, the metric's own error on every rank."""

    def work(comm: Any) -> None:
        metric, empty = Raises(), Own()
        if comm.rank == 0:
            metric.update(torch.ones(2, 3))
        before = states(metric)
        with pytest.raises(ZeroDivisionError, match="3"):
            sync_and_compute(metric, comm=comm)
        assert states(metric) == before
        with synced(empty, comm=comm), pytest.raises(AttributeError):
            empty.width  # noqa: B018
        with synced(empty, comm=comm):
            empty.update(torch.ones(2, 3))
            assert empty.width == 3
        assert "width" not in vars(empty)

    run(world_size, work)


@pytest.mark.parametrize(("make", "name"), [(Adds, "samples"), (Own, "width")])
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
    assert error.per_rank[1] == f"{name} = {4 if make is Own else 3}"
    assert f'self.add_state("{name}"' in error.do
    assert error.peers == (0, 1)
    assert run(3, work, (1,)) == [3.0 if make is Own else 4.0] * 3


def nested(times: int) -> list[Any]:
    """Return a list that holds itself, or lists in lists."""
    value: list[Any] = []
    if times == 0:
        value += [value, value]
    for _ in range(times):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [np.arange(4)[::-1], np.arange(4, dtype=">i4"), np.float64(2.5), np.broadcast_to(1.0, (3, 2)), np.arange(20_000)],
    ids=["reversed", "big-endian", "scalar", "read-only", "large"],
)
def test_arrays_of_any_kind_are_told_apart(value: Any) -> None:
    """Every sync describes them: one that torch cannot hold must not end it on one rank."""
    assert digest_of({"x": value}) == digest_of({"x": value.copy()}) != digest_of({"x": value + 1})


ABSENT = object()
REFUSED = object()
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
        ((1, 1.0, 0), (0, 1), REFUSED),
        ((1, ABSENT, ABSENT), (0, 1), REFUSED),
        ((SOME, SOME + 1, SOME), (0, 1), REFUSED),
        ((print, None), (0,), REFUSED),
        ((nn.Identity(), ABSENT), (0,), REFUSED),
        ((nn.Parameter(torch.ones(1)), ABSENT), (0,), REFUSED),
        ((nested(0), ABSENT), (0,), REFUSED),
        ((nested(150), ABSENT), (0,), REFUSED),
        ((torch.ones(3, 2)[:1, 1], torch.ones(1), ABSENT), (0, 1), torch.ones(1)),  # one element, and a stride
        ((torch.zeros(20_000), ABSENT), (0,), REFUSED),
    ],
)
def test_what_ranks_with_data_have_alike_is_borrowed(per_rank: Any, updated: tuple[int, ...], value: Any) -> None:
    columns = [{} if each is ABSENT else {"x": described(each)} for each in per_rank]
    refused = pytest.raises(StateError, match=r"the attribute m\.x is no state, ")
    with refused if value is REFUSED else nullcontext() as caught:
        found = agreed("m", columns, updated, Header("sync of metrics"), 0).get("x", ABSENT)
        assert repr(found) == repr(value)
        assert type(found) is type(value)
    if caught is not None:
        can_be_a_state = "cannot be sent" not in str(caught.value)
        assert ("self.add_state(" in caught.value.do) is can_be_a_state
        assert ("set self.x in __init__" in caught.value.do) is not can_be_a_state
