"""Every sample once, in the order of ids: of every kind, from any sampler, to all, to one, to a file."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.collectives import exchange, gather_samples, sample_columns
from distmetrics.testing import run
from tests.samples.ranks import KINDS, PLAIN, batch, lines_of, same


@st.composite
def shares(draw: Any) -> tuple[int, list[list[int]], list[str]]:
    """Samples, each on one rank or on several, in any order; ranks without any; some columns."""
    count = draw(st.integers(0, 12))
    world_size = draw(st.integers(1, 4))
    own: list[list[int]] = [[] for _ in range(world_size)]
    for index in range(count):
        for rank in draw(st.lists(st.integers(0, world_size - 1), min_size=1, max_size=3)):
            own[rank].append(index)
    kinds = draw(st.lists(st.sampled_from(KINDS), unique=True, max_size=4))
    return count, [draw(st.permutations(each)) for each in own], kinds


FILE = "file"


@settings(max_examples=60)
@given(given_shares=shares(), size=st.sampled_from([1, 100, 1 << 24]), texts=st.booleans(), data=st.data())
def test_any_shares(tmp_path_factory: Any, given_shares: Any, size: int, texts: bool, data: st.DataObject) -> None:
    """Also in a large world, where hashes are compared first and nothing is inline."""
    count, own, kinds = given_shares
    dst = data.draw(st.sampled_from([None, FILE, *range(len(own))]))
    expected = data.draw(st.sampled_from([None, count]))
    path = tmp_path_factory.mktemp("samples") / FILE
    path.write_text("of an earlier run")
    kinds = [kind for kind in kinds if dst != FILE or kind in PLAIN]
    names = [f"{index:03}" if texts else index for index in range(count)]

    def work(comm: Any) -> Any:
        mine = own[comm.rank]
        ids = [names[index] for index in mine] if texts else torch.tensor(mine)
        return dm.gather_samples(
            ids, batch(mine, kinds), expected=expected, dst=path if dst == FILE else dst, comm=comm
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather_samples, "ROUND", size)
        patch.setattr(exchange, "LARGE_WORLD", data.draw(st.sampled_from([1, exchange.LARGE_WORLD])))
        results = run(len(own), work)
    for rank, gathered in enumerate(results):
        if dst not in (None, FILE, rank):
            assert gathered is None
            continue
        assert [*map(type(names[0]) if names else int, gathered.ids)] == names
        assert gathered.dropped == sum(map(len, own)) - count
        if dst == FILE:
            assert gathered.tree is None
        elif count:
            assert [*gathered.tree] == kinds
            assert all(same(gathered.tree[kind], batch(range(count), kinds)[kind]) for kind in kinds)
    if dst == FILE:
        assert [json.loads(line) for line in path.read_text().splitlines()] == lines_of(names, kinds)
        assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("nothing", [[], (), {}, None, {"x": torch.empty(0, 7)}], ids=repr)
def test_a_rank_without_samples_need_not_know_the_tree(nothing: Any) -> None:
    def work(comm: Any) -> Any:
        if comm.rank == 0:
            return dm.gather_samples(torch.empty(0), nothing, comm=comm)
        return dm.gather_samples([4, 2], {"x": torch.ones(2, 3), "t": (["four", "two"],)}, comm=comm)

    for gathered in run(2, work):
        assert gathered.ids.tolist() == [2, 4]
        assert gathered.tree["x"].shape == (2, 3)
        assert gathered.tree["t"] == (["two", "four"],)


def test_no_rank_has_samples(tmp_path: Path) -> None:
    def work(comm: Any) -> Any:
        tree = {"x": torch.empty(0, 3), "t": [], "r": []}
        dm.gather_samples([], tree, dst=tmp_path / "empty", comm=comm)
        return dm.gather_samples([], tree, expected=0, comm=comm)

    for ids, tree, dropped in run(3, work):
        assert (len(ids), dropped, tree["x"].shape, tree["t"]) == (0, 0, (0, 3), [])
    assert (tmp_path / "empty").read_text() == ""


def test_lists_that_hold_other_things_on_other_ranks() -> None:
    """Each item then travels by itself, and keeps its type; ranks may be those of a group."""
    own: list[list[Any]] = [["a", "b"], [1, 2], [None, torch.ones(1)], [{"k": 1}, {"k": "x"}]]

    def work(comm: Any) -> Any:
        if comm.rank == 4:
            return None
        group = comm.subgroup([0, 1, 2, 3])
        ids = [comm.rank, comm.rank + 4]
        records = [{"k": each, "same": 1.5} for each in own[comm.rank]]
        return dm.gather_samples(ids, {"mixed": own[comm.rank], "records": records}, comm=group)

    *found, outside = run(5, work)
    assert outside is None
    for _, tree, _ in found:
        wanted = [each[0] for each in own] + [each[1] for each in own]
        assert same(tree["mixed"], wanted)
        assert same([record["k"] for record in tree["records"]], wanted)


_ENDS = [-(1 << 63), (1 << 63) - 1, 0, -1, 5, 1 << 40]


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("ends", [_ENDS, _ENDS[:1], _ENDS[1:2]])
def test_ids_from_end_to_end_of_64_bits(world_size: int, ends: list[int]) -> None:
    def work(comm: Any) -> Any:
        mine = ends[comm.rank :: comm.world_size]
        return dm.gather_samples(mine, [*map(str, mine)], expected=ends, comm=comm)

    for ids, texts, _ in run(world_size, work):
        assert ids.tolist() == sorted(ends)
        assert texts == [*map(str, sorted(ends))]


def test_items_are_made_when_they_are_read_and_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    make = sample_columns.deserialize
    monkeypatch.setattr(sample_columns, "deserialize", lambda *args, **more: (read.append(1), make(*args, **more))[1])
    gathered = dm.gather_samples([1, 0], {"t": ["one", "zero"]})
    assert gathered is not None
    texts = gathered.tree["t"]
    assert (len(texts), read) == (2, [])
    assert (texts[1], texts[-2:], repr(texts)) == ("one", ["zero", "one"], "['zero', 'one']")
    assert "one" in texts
    assert texts != ["zero"]
    assert read == [1]
    again = dm.gather_samples(gathered.ids, gathered.tree)
    for copied in (copy.deepcopy(gathered), pickle.loads(pickle.dumps(gathered)), again):
        assert copied.tree["t"] == ["zero", "one"]


def test_tensors_of_different_shape_have_memory_of_their_own() -> None:
    gathered = dm.gather_samples([1, 0], [torch.ones(2, 3, requires_grad=True), torch.zeros(0)[None]])
    assert gathered is not None
    first, second = gathered.tree
    assert first.shape == (1, 0)
    assert second.untyped_storage().nbytes() == 6 * 4
    assert not second.requires_grad


def test_ids_and_columns_of_numpys_and_repeats_of_dicts_in_another_order() -> None:
    """As a set of names has another order in each process."""

    def work(comm: Any) -> Any:
        rows = np.arange(comm.rank, comm.rank + 2, dtype=np.float32)[::-1].copy()
        items = [("score", 1.0), ("name", "a")][:: 1 - 2 * comm.rank]
        return dm.gather_samples(rows.astype(np.int64), {"a": rows, "d": [dict(items)] * 2}, comm=comm)

    for _, tree, dropped in run(2, work):
        assert (tree["a"].dtype, tree["a"].tolist(), dropped) == (torch.float32, [0.0, 1.0, 2.0], 1)
        assert tree["d"] == [{"score": 1.0, "name": "a"}] * 3
    ids, tree, _ = dm.gather_samples([*np.array(["b", "a"])], [1, 2])
    assert (ids, tree, {*map(type, ids)}) == (["a", "b"], [2, 1], {str})
