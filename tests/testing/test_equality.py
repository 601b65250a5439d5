"""When two computed values are the same."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.testing.equality import BITWISE, CLOSE, EXACT, Equality, relative

LOOSE = Equality("loose", types=False)


@pytest.mark.parametrize(
    ("expected", "got", "said"),
    [
        (torch.tensor(1.0), torch.tensor(1.0 + 1e-6), ""),
        (torch.tensor(math.nan), torch.tensor(math.nan), ""),
        (torch.tensor(1.0), torch.tensor(1.1), "1.1 instead of 1"),
        (torch.tensor(1), torch.tensor(2), "2 instead of 1"),
        (torch.tensor(1), torch.tensor(1.0), "float32[] instead of int64[]"),
        (torch.zeros(2), torch.zeros(3), "float32[3] instead of float32[2]"),
        (torch.zeros(2), torch.ones(2), "2 of 2 values differ, at most by 1"),
        ({"a": (1, torch.tensor(1.0))}, {"a": (1, torch.tensor(2.0))}, "['a'][1] 2 instead of 1"),
        ({"a": 1}, {"b": 1}, "keys ['b'] instead of ['a']"),
        ([1], [1, 2], "2 items instead of 1"),
        ((1,), [1], "[1] (list) instead of (1,) (tuple)"),
        ("a", "b", "'b' instead of 'a'"),
        (math.nan, math.nan, ""),
        (torch.tensor(1 + 0j), torch.tensor(2 + 0j), "(2+0j) instead of (1+0j)"),
        (torch.tensor(2**53), torch.tensor(2**53 + 1), f"{2**53 + 1} instead of {2**53}"),
        (torch.tensor(1), 1, "1 (int) instead of 1 (Tensor)"),
    ],
)
def test_difference(expected, got, said):
    assert CLOSE.difference(expected, got) == said


@pytest.mark.parametrize(
    ("equality", "expected", "got", "said"),
    [
        (relative(1e-2), 100.0, 100.9, ""),
        (relative(1e-2), 100.0, 101.1, "101.1 instead of 100"),
        (relative(1e-2), torch.ones(2), torch.tensor([1.0, 1.1]), "1 of 2 values differ, at most by 0.1"),
        (LOOSE, torch.tensor(1), torch.tensor(1.0), ""),
        (LOOSE, torch.tensor(1), 1.0, ""),
        (LOOSE, torch.zeros(2), torch.zeros(3), "float32[3] instead of float32[2]"),
    ],
)
def test_tolerances_and_types_count_as_was_asked_for(equality, expected, got, said):
    assert equality.difference(expected, got).startswith(said)
    assert bool(equality.difference(expected, got)) == bool(said)


VALUES = st.recursive(
    st.integers() | st.floats(width=32) | st.text(max_size=3) | st.floats(width=32).map(torch.tensor),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
)


@given(VALUES)
@pytest.mark.parametrize("equality", [EXACT, CLOSE, BITWISE], ids=str)
def test_everything_is_equal_to_itself(equality, value):
    assert equality.difference(value, value) == ""
