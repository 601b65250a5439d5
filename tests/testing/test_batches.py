"""Batches as rows of samples: cutting and joining lose nothing and change no order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.errors import InputError
from distmetrics.testing.batches import Batch, as_batch, count, join, take
from distmetrics.testing.equality import EXACT


def batch_of(rows: int) -> Batch:
    """Return a batch with every kind of argument."""
    return Batch(
        (torch.arange(rows * 2).reshape(rows, 2), [f"s{i}" for i in range(rows)], True),
        {"boxes": [{"x": torch.ones(i)} for i in range(rows)], "tokens": {"ids": torch.arange(rows)}},
    )


def same(one: Batch, other: Batch) -> bool:
    return not EXACT.difference([list(one.args), dict(one.kwargs)], [list(other.args), dict(other.kwargs)])


@given(st.integers(1, 6), st.data())
def test_what_is_cut_is_joined_again(rows: int, data: Any) -> None:
    """At any place."""
    at = data.draw(st.integers(0, rows))
    whole = batch_of(rows)
    parts = [take(whole, range(at)), take(whole, range(at, rows))]
    assert [count(part) for part in parts] == [at, rows - at]
    assert same(join(parts), whole)


@given(st.permutations(range(5)))
def test_an_order_is_undone_by_its_inverse(order: list[int]) -> None:
    """So nothing is lost."""
    shuffled = take(batch_of(5), order)
    assert same(take(shuffled, [order.index(i) for i in range(5)]), batch_of(5))


@pytest.mark.parametrize(
    ("given_", "rows"),
    [
        ((torch.zeros(3, 2), torch.zeros(3)), 3),
        ((torch.zeros(3), torch.zeros(2)), None),
        ((1.0,), None),
        (("a text",), None),
        ((np.zeros((2, 5)), [1, 2]), 2),
        ({"preds": torch.zeros(4), "real": True}, 4),
        (torch.zeros(2), 2),
        ((torch.tensor(1.0), torch.zeros(2)), 2),
    ],
)
def test_samples_are_counted_where_the_arguments_agree(given_: Any, rows: int | None) -> None:
    """Along the first axis."""
    assert count(as_batch(given_)) == rows


def test_a_recorded_call_of_another_class_is_a_batch() -> None:
    """As benchmarks keep them."""

    class Call:
        def __init__(self) -> None:
            self.args, self.kwargs = (1,), {"x": 2}

    assert as_batch(Call()) == Batch((1,), {"x": 2})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((torch.zeros(1, 2),), (torch.zeros(1, 3),)),
        ((torch.zeros(1),), (torch.zeros(1, dtype=torch.int64),)),
        ((torch.zeros(1), True), (torch.zeros(1), False)),
        ((torch.zeros(1),), (torch.zeros(1), 1)),
        ({"a": torch.zeros(1)}, {"b": torch.zeros(1)}),
        ((torch.zeros(1), torch.tensor(1.0)), (torch.zeros(1), torch.tensor(2.0))),
    ],
)
def test_what_does_not_go_together_is_not_joined(one: Any, other: Any) -> None:
    """It is said, not done half."""
    with pytest.raises(InputError, match="cannot be joined"):
        join([as_batch(one), as_batch(other)])


def test_arrays_are_joined_as_arrays() -> None:
    """NumPy's stay NumPy's."""
    joined = join([as_batch((np.array([1]),)), as_batch((np.array([2, 3]),))])
    assert joined.args[0].tolist() == [1, 2, 3]
    assert take(joined, [2]).args[0].tolist() == [3]
