"""Objects travel as data; those of any class by pickling, where every rank says so."""

from __future__ import annotations

import enum
from collections import defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.collectives.buckets import to_bytes
from distmetrics.testing import outcomes, run
from tests.backends import same_error

np = pytest.importorskip("numpy")


class Pair(NamedTuple):
    one: int
    other: int


class Color(enum.IntEnum):
    RED = 1


class Own:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and torch.equal(self.x, other.x)

    __hash__ = None  # type: ignore[assignment]


def gathered(comm: Any, values: list[Any], allow_pickle: bool = False) -> Any:
    return dm.all_gather_object(values[comm.rank], allow_pickle=allow_pickle, comm=comm)


ARRAYS = [
    np.arange(6.0).reshape(2, 3).T,
    np.array(3, dtype=">i4"),
    np.zeros((0, 4), dtype="f2"),
    np.array([True, False]),
    np.array(["text", "é"]),
    np.array(["2020-01-01"], dtype="M8[D]"),
    np.float32(1.5),
    np.bool_(True),
    np.str_("text"),
]


def test_data_of_each_rank() -> None:
    """Tensors have memory of their own, and need no gradients."""
    values = [{"a": [1, (2.5, None)], 3: {"x", b"\0"}}, torch.Size([2]), [float("inf"), 2**70, "\ud800é", 1 - 2j]]
    assert run(3, gathered, values) == [values] * 3
    mine = torch.arange(6.0, requires_grad=True)
    tensors = [mine[::2] * 1, mine.to(torch.bfloat16), torch.zeros(2, 0), torch.tensor(1j)]
    for arrays, again in run(2, gathered, [ARRAYS, tensors]):
        for got, array in zip(arrays, ARRAYS, strict=True):
            assert (type(got), got.dtype) == (type(array), array.dtype)
            assert np.array_equal(got, array)
            assert got.ndim == 0 or got.flags.writeable
        assert [(x.dtype, x.requires_grad) for x in again] == [(x.dtype, False) for x in tensors]
        assert all(map(torch.equal, again, tensors))
        assert len({x.untyped_storage().data_ptr() for x in again if x.numel()}) == 3


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


IN_ITSELF: list[Any] = []
IN_ITSELF += [IN_ITSELF, IN_ITSELF]
NO_DATA = {
    "a class": object(),
    "a named tuple": Pair(1, 2),
    "an enum": Color.RED,
    "a default of a dict": defaultdict(list),
    "a function": [len],
    "a parameter": {"p": torch.nn.Parameter(torch.ones(1))},
    "a sparse tensor": torch.eye(2).to_sparse(),
    "no data": torch.ones(1, device="meta"),
    "an array of objects": np.array([len], dtype=object),
    "an array of fields": np.zeros(1, dtype="i4,f4"),
    "deep": nested(200),
    "in itself": IN_ITSELF,
}


@pytest.mark.parametrize("what", NO_DATA)
def test_what_is_no_data_is_refused_on_every_rank(what: str) -> None:
    """Before anything of it has moved; the text says what to do."""
    error = same_error(outcomes(3, gathered, [1, NO_DATA[what], 2]), dm.InputTypeError)
    assert error.peers == (1,)
    assert "allow_pickle=True" in str(error)


def test_objects_of_any_class_where_all_say_so() -> None:
    values = [Own(torch.arange(3.0)), [Own(torch.zeros(2)), Pair(1, 2)]]
    assert run(2, gathered, values, True) == [values] * 2
    error = same_error(outcomes(2, gathered, [1, (x for x in ())], True), dm.InputTypeError)
    assert "cannot be pickled" in str(error)


@given(st.integers(0, 40))
def test_bytes_come_out_of_torch_in_pieces(size: int) -> None:
    """A count of ctypes has 32 bits, which 3 GiB do not fit into."""
    data = torch.arange(size, dtype=torch.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distmetrics.collectives.buckets._PIECE", 7)
        assert to_bytes(data) == bytes(range(size))


def test_a_default_device_without_data() -> None:
    """What distmetrics makes itself is on devices that it chooses."""

    def work(comm: Any) -> list[Any]:
        with torch.device("meta"):
            total = dm.from_function(lambda s: s["x"] / s["n"], {"x": "mean", "n": "sum"})
            total.update(x=2.0, n=4, weight=1)
            never = dm.from_function(lambda s: [s["x"], len(s["y"])], {"x": "max", "y": "cat"})
            numbers = dm.mean(comm.rank, weight=1), dm.all_reduce(3), dm.broadcast(comm.rank), dm.all_true(True)
            rows = dm.all_gather(3).tolist(), dm.all_gather_cat(1.5).tolist(), dm.all_gather_object([comm.rank])
            synced = dm.sync_and_compute([total, never])
            return [[*map(float, numbers)], rows, [float(synced[0]), [*map(float, synced[1])]]]

    rows = [3, 3], [1.5, 1.5], [[0], [1]]
    assert run(2, work) == [[[0.5, 6.0, 0.0, 1.0], rows, [0.25, [float("-inf"), 0.0]]]] * 2
