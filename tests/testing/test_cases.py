"""Batches as rows, cases as code, and how cases are dealt, drawn and made smaller."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, find, given, settings
from hypothesis import strategies as st

from distmetrics.errors import InputError, InputTypeError
from distmetrics.testing import inputs, sharded
from distmetrics.testing.equality import BITWISE, EXACT
from distmetrics.testing.shards import (
    Case,
    as_batch,
    code,
    count,
    deal,
    fewer,
    join,
    padded,
    partitions,
    shapes,
    take,
)

BATCHES = [(torch.arange(n) + 10 * n,) for n in (3, 1, 2, 4)]


def batch_of(rows: int, named: bool = False) -> Any:
    """Return a batch with every kind of argument."""
    arguments = {
        "preds": torch.arange(rows * 2).reshape(rows, 2),
        "texts": [f"s{i}" for i in range(rows)],
        "real": True,
        "boxes": [{"x": torch.ones(i)} for i in range(rows)],
        "tokens": {"ids": torch.arange(rows)},
        "array": np.arange(rows),
    }
    return arguments if named else tuple(arguments.values())


def same(one: Any, other: Any) -> bool:
    plain = [list(each.values()) if isinstance(each, dict) else list(each) for each in (one, other)]
    both = [[x.tolist() if isinstance(x, np.ndarray) else x for x in each] for each in plain]
    return type(one) is type(other) and not EXACT.difference(*both)


@given(st.integers(1, 6), st.booleans(), st.data())
def test_rows_that_are_taken_and_joined_are_the_batch_again(rows: int, named: bool, data: Any) -> None:
    whole = batch_of(rows, named)
    at = data.draw(st.integers(0, rows))
    parts = [take(whole, range(at)), take(whole, range(at, rows))]
    assert [count(part) for part in parts] == [at, rows - at]
    assert same(join(parts), whole)
    order = data.draw(st.permutations(range(rows)))
    assert same(take(take(whole, order), [order.index(i) for i in range(rows)]), whole)


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        ((torch.zeros(3, 2), torch.zeros(3)), 3),
        ((torch.zeros(3), torch.zeros(2)), None),
        ((1.0,), None),
        ("a text", None),
        ({"preds": torch.zeros(4), "real": True}, 4),
        ((torch.tensor(1.0), torch.zeros(2)), 2),
    ],
)
def test_samples_are_counted_where_the_arguments_agree(batch: Any, rows: int | None) -> None:
    assert count(as_batch(batch)) == rows


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((torch.zeros(1, 2),), (torch.zeros(1, 3),)),
        ((torch.zeros(1),), (torch.zeros(1, dtype=torch.int64),)),
        ((torch.zeros(1), True), (torch.zeros(1), False)),
        ((torch.zeros(1),), (torch.zeros(1), 1)),
        ({"a": torch.zeros(1)}, {"b": torch.zeros(1)}),
    ],
)
def test_what_does_not_go_together_is_not_joined(one: Any, other: Any) -> None:
    with pytest.raises(InputError, match="cannot be joined"):
        join([one, other])


TENSORS = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.bool]).flatmap(
    lambda dtype: st.lists(st.floats(width=16), max_size=3).map(lambda xs: torch.tensor(xs).to(dtype))
)
VALUES = st.recursive(
    TENSORS | st.floats() | st.integers() | st.text() | st.booleans() | st.just(torch.tensor(-0.1)),
    lambda inner: st.lists(inner, max_size=2) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=2),
)


@example([float("nan"), float("-inf")])
@given(VALUES)
def test_code_makes_the_same_bits_again(value: Any) -> None:
    again = eval(code(value), {"torch": torch})
    difference = BITWISE.difference(value, again)
    assert not difference or "nan" in repr(value), "of NaN there are many, and code has one"
    assert not EXACT.difference(value, again)


def test_the_code_of_arrays_and_of_cases() -> None:
    array = np.array([1.5, np.inf], dtype=np.float32)
    (again,) = eval(code((array,)), {"np": np})
    assert again.dtype == array.dtype
    assert again.tolist() == array.tolist()
    assert repr(Case([[torch.ones(1)], [{"x": 1}], []])) == "(((torch.tensor([1.0]),),), ({'x': 1},), ())"


def samples(shards: Any) -> list[int]:
    return sorted(x for batch in chain(*shards) for x in batch[0].tolist())


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_every_batch_is_dealt_once_to_its_rank_in_order(ranks: list[int]) -> None:
    for rank, shard in enumerate(deal(BATCHES, ranks, 4)):
        assert [id(b) for b in shard] == [id(b) for b, r in zip(BATCHES, ranks, strict=True) if r == rank]


@pytest.mark.parametrize("n", range(1, 9))
def test_the_shapes_that_are_always_tried(n: int) -> None:
    """Each holds all batches; empty ranks are among them, first and last; no shape comes twice."""
    found = shapes([(i,) for i in range(n)], (2, 3))
    assert all(sorted(x for (x,) in chain(*shards)) == list(range(n)) for shards in found.values())
    assert any(not shards[0] for shards in found.values())
    assert any(not shards[-1] for shards in found.values())
    assert {2, 3} <= {len(shards) for shards in found.values()}
    assert len(set(found.values())) == len(found)
    assert n < 3 or [len(shard) for shard in found.get("doubling", "12")][:2] in ([1, 2], [1, 1])


@settings(max_examples=20)
@given(sharded(inputs.aggregation(), world_sizes=(2, 4)))
def test_drawn_cases_are_of_the_sizes_and_code_that_runs(case: Case) -> None:
    assert len(case) in (2, 4)
    assert repr(Case(eval(repr(case), {"torch": torch}))) == repr(case)


@pytest.mark.parametrize(
    "wanted",
    [
        lambda case: any(not shard for shard in case[:1]) and any(case[1:]),
        lambda case: any(not shard for shard in case[1:]) and bool(case[0]),
        lambda case: len({len(shard) for shard in case}) == 3,
        lambda case: any(count(b) == 0 for b in chain(*case)),
        lambda case: [[*map(count, shard)] for shard in case[:2]] == [[0], [3, 1, 2, 4]],
        lambda case: len([*chain(*case)]) > len(BATCHES),
        lambda case: len(case) > 1 and samples(case) == samples([BATCHES]),
        lambda case: samples(case[:1]) > samples(case[1:]) > [],
    ],
)
def test_every_kind_of_case_is_drawn(wanted: Any) -> None:
    """Ranks without data, uneven ones, batches without samples, batches in two parts, all samples, other orders."""
    assert find(sharded(BATCHES), wanted)


def test_a_case_shrinks_to_few_ranks_batches_and_samples() -> None:
    two_have_samples = lambda case: sum(any(map(count, shard)) for shard in case) >= 2  # noqa: E731
    smallest = find(sharded(inputs.aggregation()), two_have_samples)
    assert repr(smallest) == "(((torch.tensor([0.0]),),), ((torch.tensor([0.0]),),))"
    negative_beside_nothing = lambda case: [[*map(count, x)] for x in case] == [[0], [1]] and samples(case)[0] < 0  # noqa: E731
    smallest = find(sharded(inputs.aggregation()), negative_beside_nothing)
    assert repr(smallest) == "(((torch.zeros((0,), dtype=torch.float32),),), ((torch.tensor([-0.0625]),),))"
    of_list = find(sharded(BATCHES), lambda case: 42 in samples(case))
    assert repr(of_list) == "(((torch.tensor([42]),),),)"


@pytest.mark.parametrize("rows", [3, 100])
def test_what_is_left_out_of_a_case_goes(rows: int) -> None:
    """Ranks, batches, and samples; of a large batch runs of samples."""
    case = Case([[torch.arange(rows), torch.ones(2)], [], [torch.arange(rows) + 1000]])
    while wanted := [each for each in fewer(case) if {1, 1001} <= {*samples(each)}]:
        case = wanted[0]
    assert samples(case) == [1, 1001]


def test_partitions_and_padding_lose_nothing() -> None:
    lost = find(partitions(BATCHES, (3,)), lambda shards: sum(map(len, shards)) > 5)
    assert samples(lost) == samples([BATCHES])
    with pytest.raises(InputError, match="an argument indices="):
        padded([{"x": torch.zeros(3)}], 2)


@pytest.mark.parametrize(
    ("batches", "sizes", "error", "text"),
    [
        ([], (2,), InputError, "batches is empty"),
        ("abc", (2,), InputTypeError, "batches must be a list"),
        (3, (2,), InputTypeError, "batches must be a list"),
        (BATCHES, (), InputError, "world_sizes must be"),
        (BATCHES, (0, 2), InputError, "world_sizes must be"),
    ],
)
def test_what_cannot_be_dealt_is_refused(batches: Any, sizes: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        sharded(batches, world_sizes=sizes)
