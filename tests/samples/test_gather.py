"""Every sample once, in the order of ids: of every kind, from any sampler, to all, to one, to a file."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.collectives import exchange, gather_samples, sample_columns
from distmetrics.testing import run
from tests.samples import ranks
from tests.samples.ranks import KINDS, batch, same

SMALL = 200  # bytes of a round


def test_the_same_from_one_to_eight_ranks_and_any_sampler() -> None:
    digests = {digest for world_size in (1, 3, 8) for digest in run(world_size, ranks.gathers_every_kind)[0]}
    assert len(digests) == 1


def test_in_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_samples, "ROUND", SMALL)
    run(2, ranks.gathers_every_kind)


def test_in_a_large_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where hashes are compared first, and nothing rides along in frames."""
    monkeypatch.setattr(exchange, "LARGE_WORLD", 1)
    run(3, ranks.gathers_every_kind)


@pytest.mark.parametrize("world_size", [1, 5])
def test_to_one_rank(world_size: int) -> None:
    run(world_size, ranks.gathers_to_one)


@pytest.mark.parametrize(("world_size", "size"), [(1, 1 << 24), (5, SMALL)])
def test_to_a_file(world_size: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_samples, "ROUND", size)
    (tmp_path / "lines.jsonl").write_text("of an earlier run")
    run(world_size, ranks.gathers_to_a_file, tmp_path / "lines.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["lines.jsonl"]


@pytest.mark.gloo
def test_on_processes(tmp_path: Path) -> None:
    def everything(comm: Any, path: Path) -> list[str]:
        ranks.gathers_to_one(comm)
        ranks.gathers_to_a_file(comm, path)
        return ranks.gathers_every_kind(comm)

    (digests, *others) = run(3, everything, tmp_path / "lines.jsonl", backend="gloo")
    assert set(digests) == {run(1, ranks.gathers_every_kind)[0][0]}
    assert all(other == digests for other in others)


# -- any trees, any shares


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


@settings(max_examples=40)
@given(given_shares=shares(), size=st.sampled_from([1, 100, 1 << 24]), texts=st.booleans(), data=st.data())
def test_any_shares(given_shares: Any, size: int, texts: bool, data: st.DataObject) -> None:
    count, own, kinds = given_shares
    dst = data.draw(st.sampled_from([None, *range(len(own))]))
    expected = data.draw(st.sampled_from([None, count]))

    def work(comm: Any) -> Any:
        mine = own[comm.rank]
        ids = [f"{index:03}" for index in mine] if texts else torch.tensor(mine)
        return dm.gather_samples(ids, batch(mine, kinds), expected=expected, dst=dst, comm=comm)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather_samples, "ROUND", size)
        results = run(len(own), work)
    for rank, gathered in enumerate(results):
        if dst not in (None, rank):
            assert gathered is None
            continue
        ids = [int(number) for number in gathered.ids]
        assert ids == [*range(count)]
        assert gathered.dropped == sum(map(len, own)) - count
        if count:
            assert [*gathered.tree] == kinds
            assert all(same(gathered.tree[kind], batch(range(count), kinds)[kind]) for kind in kinds)


# -- ranks without samples


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
        assert (len(ids), dropped) == (0, 0)
        assert tree["x"].shape == (0, 3)
        assert tree["t"] == []
    assert (tmp_path / "empty").read_text() == ""


def test_lists_that_hold_other_things_on_other_ranks() -> None:
    """Each item then travels by itself, and keeps its type."""
    own: list[list[Any]] = [["a", "b"], [1, 2], [None, torch.ones(1)], [{"k": 1}, {"k": "x"}]]

    def work(comm: Any) -> Any:
        ids = [comm.rank, comm.rank + 4]
        records = [{"k": own[comm.rank][0], "same": 1.5}, {"k": own[comm.rank][1], "same": 2.5}]
        return dm.gather_samples(ids, {"mixed": own[comm.rank], "records": records}, comm=comm)

    for _, tree, _ in run(4, work):
        wanted = [each[0] for each in own] + [each[1] for each in own]
        assert same(tree["mixed"], wanted)
        assert same([record["k"] for record in tree["records"]], wanted)


def test_in_a_subgroup() -> None:
    """Ranks are those of the group."""

    def work(comm: Any) -> Any:
        if comm.rank == 0:
            return None
        pair = comm.subgroup([1, 2])
        return dm.gather_samples([comm.rank], ["text"], dst=1, expected=[1, 2], comm=pair)

    results = run(3, work)
    assert results[:2] == [None, None]
    assert results[2].tree == ["text", "text"]


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


# -- what comes back


def test_items_are_made_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    make = sample_columns.deserialize
    monkeypatch.setattr(sample_columns, "deserialize", lambda *args, **more: (read.append(1), make(*args, **more))[1])
    gathered = dm.gather_samples([1, 0], {"t": ["one", "zero"]})
    assert gathered is not None
    texts = gathered.tree["t"]
    assert len(texts) == 2
    assert read == []
    assert texts[1] == "one"
    assert texts[-2:] == ["zero", "one"]
    assert "one" in texts
    assert repr(texts) == "['zero', 'one']"
    assert texts != ["zero"]
    assert read == [1]


def test_what_comes_back_can_be_copied_and_passed_on() -> None:
    gathered = dm.gather_samples([1, 0], {"t": ["one", "zero"], "r": [torch.ones(1), torch.ones(2)]})
    assert gathered is not None
    assert copy.deepcopy(gathered).tree["t"] == ["zero", "one"]
    assert pickle.loads(pickle.dumps(gathered)).tree["t"] == ["zero", "one"]
    again = dm.gather_samples(gathered.ids, gathered.tree)
    assert again is not None
    assert again.tree["t"] == ["zero", "one"]


def test_tensors_of_different_shape_have_memory_of_their_own() -> None:
    gathered = dm.gather_samples([1, 0], [torch.ones(2, 3, requires_grad=True), torch.zeros(0)[None]])
    assert gathered is not None
    first, second = gathered.tree
    assert first.shape == (1, 0)
    assert second.untyped_storage().nbytes() == 6 * 4
    assert not second.requires_grad


def test_arrays_are_columns_as_tensors_are() -> None:
    np = pytest.importorskip("numpy")

    def work(comm: Any) -> Any:
        ids = np.array([comm.rank, comm.rank + 2])
        return dm.gather_samples(ids, {"a": np.arange(4, dtype=np.float32).reshape(2, 2)}, comm=comm)

    for _, tree, _ in run(2, work):
        assert tree["a"].dtype == torch.float32
        assert tree["a"].tolist() == [[0.0, 1.0], [0.0, 1.0], [2.0, 3.0], [2.0, 3.0]]


def test_repeats_of_dicts_whose_keys_come_in_another_order() -> None:
    """As a set of names has another order in each process."""

    def work(comm: Any) -> Any:
        sample = {"score": 1.0, "name": "a"}
        return dm.gather_samples([0], [dict([*sample.items()][:: 1 - 2 * comm.rank])], comm=comm)

    for _, tree, dropped in run(2, work):
        assert (tree, dropped) == ([{"score": 1.0, "name": "a"}], 1)


def test_ids_that_are_texts_of_numpys() -> None:
    np = pytest.importorskip("numpy")
    ids, tree, _ = dm.gather_samples([*np.array(["b", "a"])], [1, 2])
    assert (ids, tree) == (["a", "b"], [2, 1])
    assert {*map(type, ids)} == {str}
