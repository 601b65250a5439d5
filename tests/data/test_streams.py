"""Every sample of a stream exactly once, or an error on every rank; and whatever a batch is made of is compared."""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter, UserDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, Sampler, get_worker_info

import distmetrics
from distmetrics.data import exact, fresh
from distmetrics.data.checksum import checksum
from distmetrics.errors import InputError
from distmetrics.testing import outcomes, run
from tests.backends import same_error

FORMS: dict[str, Any] = {  # of a sample
    "tensor": torch.tensor,
    "text": str,
    "nested": lambda n: {"id": [str(n)], "x": (torch.tensor([n, 0]), None)},
    "numpy": lambda n: np.array([n]),
    "object": lambda n: SimpleNamespace(id=n, make=lambda: n),
}


class Stream(IterableDataset[Any]):
    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


class Sized(Stream):
    def __len__(self) -> int:
        return len(self.items)


class ByWorkers(Stream):
    """Each worker has a part, and its own order of it; the same on all ranks if ``seed`` is."""

    def __init__(self, items: Any, seed: int) -> None:
        super().__init__(items)
        self.seed = seed

    def __iter__(self) -> Any:
        worker = get_worker_info()
        part = list(self.items)[worker.id :: worker.num_workers]  # type: ignore[union-attr]
        return iter(random.Random(self.seed).sample(part, len(part)))


def dealt_out(comm: Any, streams: Any, size: int, form: str, dealt: bool | None = None) -> list[int]:
    """Return the samples that arrived on all ranks."""
    samples = [(n, FORMS[form](n)) for n in streams[comm.rank]]
    loader = exact(DataLoader(Stream(samples), batch_size=size, collate_fn=list), comm, dealt=dealt)
    mine = [n for batch in loader for n, _ in batch]
    return [n for theirs in distmetrics.all_gather_object(mine, comm=comm) for n in theirs]


@st.composite
def cases(draw: Any) -> tuple[list[list[int]], str]:
    """Draw the streams of up to three ranks, and what is wrong with the last one's."""
    world, count = draw(st.integers(1, 3)), draw(st.integers(0, 12))
    whole = [*range(count)]
    how = draw(st.sampled_from(["alike", "cut", "shuffled", "ends early"]))
    if how == "cut":
        return [whole[rank::world] for rank in range(world)], how
    other = {"alike": whole, "ends early": whole[: draw(st.integers(0, count))]}
    return [whole] * (world - 1) + [other[how] if how in other else draw(st.permutations(whole))], how


@given(cases(), st.integers(1, 3), st.sampled_from([*FORMS]))
def test_each_sample_arrives_once_or_every_rank_raises(case: Any, size: int, form: str) -> None:
    streams, how = case
    ended = outcomes(len(streams), dealt_out, streams, size, form)
    if ended[0].error is None:
        whole = sorted({n for stream in streams for n in stream})
        assert [sorted(outcome.value) for outcome in ended] == [whole] * len(streams)
    else:
        assert how != "alike"
        assert "dealt=True" in str(same_error(ended, InputError))
    if how == "cut":
        arrived = run(len(streams), dealt_out, streams, size, form, True)
        assert [sorted(rank) for rank in arrived] == [sorted(n for stream in streams for n in stream)] * len(streams)


@pytest.mark.gloo
@pytest.mark.parametrize("kind", ["cut, with a length", "workers"])
def test_streams_that_differ_are_an_error_on_every_rank(kind: str) -> None:
    error = same_error(outcomes(2, differ, kind, backend="gloo"), InputError)
    assert "dealt=True" in str(error)


def differ(comm: Any, kind: str) -> None:
    share = range(comm.rank, 23, comm.world_size)
    if kind == "workers":
        options = {"num_workers": 2, "multiprocessing_context": "fork"}
        alike = read(exact(DataLoader(ByWorkers(range(23), 0), **options)))  # type: ignore[arg-type]
        arrived = [n for rows in distmetrics.all_gather_object(alike) for n in rows]
        assert sorted(arrived) == [*range(23)]
        read(exact(DataLoader(ByWorkers(range(23), comm.rank), **options)))  # type: ignore[arg-type]
    else:
        read(exact(DataLoader(Sized(share), batch_size=2)))


def read(loader: Any) -> list[int]:
    return [int(n) for batch in loader for n in batch]


def test_a_rank_that_leaves_early_holds_nobody_up() -> None:
    """Nothing is exchanged for a batch, nor at the end, and what some have not read is not compared."""

    def job(comm: Any) -> tuple[int, int]:
        loader = exact(DataLoader(Stream(range(50)), batch_size=1))
        before = comm.state.count
        for _ in range(6):  # more than are kept
            for _batch in loader:
                if comm.rank:
                    break
        count = comm.state.count - before
        distmetrics.barrier()
        return count, len(read(loader))

    assert run(2, job) == [(1, 25)] * 2


def test_a_later_pass_that_differs_is_told_by_the_next_call() -> None:
    def job(comm: Any) -> str:
        data = Stream([*range(20)])
        loader = exact(DataLoader(data, batch_size=2))
        read(loader)
        distmetrics.barrier()
        data.items[-1] += comm.rank
        read(loader)
        with pytest.raises(InputError, match="10 items with checksum") as refused:
            distmetrics.all_reduce(1)
        distmetrics.barrier()  # told once
        return str(refused.value)

    texts = run(2, job)
    assert texts[0] == texts[1]
    assert "some samples do not count, or count twice" in texts[0]


def test_samples_that_are_drawn_as_they_are_read_are_not_compared_if_that_is_said() -> None:
    def job(comm: Any) -> int:
        random_rows = Stream([torch.rand(1) + n for n in range(9)])
        count = len([*exact(DataLoader(random_rows, batch_size=1), dealt=False)])
        distmetrics.barrier()
        with pytest.raises(InputError, match="dealt=False"):
            [*exact(DataLoader(random_rows, batch_size=1))]
        return count

    assert run(3, job) == [3, 3, 3]


class BeginsAnew:
    """An iterator that is reset by its end, as DALI's."""

    left = 3

    def __iter__(self) -> Any:
        self.left = 3
        return self

    def __next__(self) -> int:
        self.left -= 1
        if self.left < 0:
            self.left = 3
            raise StopIteration
        return 2 - self.left


@pytest.mark.parametrize("options", [{}, {"dealt": False}, {"dealt": True, "equal_batches": True}])
def test_an_iterator_that_begins_anew_is_read_once(options: dict[str, Any]) -> None:
    def job(comm: Any) -> list[int]:
        return list(itertools.islice(exact(BeginsAnew(), **options), 9))

    assert run(2, job) == ([[0, 1, 2]] * 2 if "equal_batches" in options else [[0, 2], [1]])


@given(st.lists(st.integers(0, 11), min_size=1, max_size=3))
def test_shares_are_levelled_for_equal_batches(counts: list[int]) -> None:
    def job(comm: Any) -> Any:
        mine = [1000 * comm.rank + n for n in range(counts[comm.rank])]
        loader = exact(exact(DataLoader(Stream(mine), batch_size=2), dealt=True), equal_batches=True)
        steps = [(batch, fresh(batch)) for batch in loader]
        assert all(len(batch) for batch, _ in steps)  # for the model
        assert [int(n) for _, kept in steps for n in kept] == mine
        return len(steps)

    assert set(run(len(counts), job)) == {max(-(-count // 2) for count in counts)}


def test_what_is_said_of_a_stream_must_fit_it() -> None:
    for loader, dealt, text in (
        ([1], [False, True], "dealt=False"),
        (DataLoader(range(4)), [True] * 2, "dealt=True is f"),
    ):
        ended = outcomes(2, lambda comm, loader=loader, dealt=dealt: exact(loader, dealt=dealt[comm.rank]))
        assert all(text in str(outcome.error) for outcome in ended)


LEAVES = st.one_of(st.integers(), st.text(), st.binary(), st.floats(), st.booleans(), st.none())


class OwnShare(Sampler[Any]):
    """Gives each rank its share already, as many samples or batches to each."""

    def __init__(self, keys: list[Any]) -> None:
        self.keys = keys

    def __iter__(self) -> Any:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_a_sampler_that_deals_out_is_told_at_the_next_call(name: str) -> None:
    def read_by_sampler(comm: Any) -> None:
        keys = [*range(comm.rank, 12, comm.world_size)]
        share: Any = OwnShare(keys if name == "sampler" else [[key] for key in keys])
        assert len([*exact(DataLoader(range(12), **{name: share}), comm)]) == 3
        distmetrics.barrier(comm=comm)

    assert "6 items with checksum" in str(same_error(outcomes(2, read_by_sampler), InputError))


@given(st.integers(1, 3), st.integers(0, 8), st.integers(0, 9))
def test_samplers_of_ones_own_that_give_all_of_the_data_are_not_told(world: int, count: int, seed: int) -> None:
    """Each rank draws what it likes before, and rank 0 reads once more than the others."""

    def job(comm: Any) -> None:
        random.seed(seed + comm.rank)
        order = random.Random(seed).sample(range(count), count)
        loader = exact(DataLoader(range(count), sampler=OwnShare(order), batch_size=2), comm)
        for epoch in range(3):
            for _ in range(1 + (comm.rank == 0)):
                assert len([*loader]) == len(loader)
            loader.set_epoch(epoch + 1)
            distmetrics.barrier(comm=comm)

    run(world, job)


TREES = st.recursive(
    st.one_of(LEAVES, st.lists(st.integers(-9, 9)).map(torch.tensor), st.lists(st.integers(-9, 9)).map(np.array)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=3).map(UserDict),
        st.dictionaries(st.text(max_size=2), inner, max_size=2).map(lambda d: SimpleNamespace(d=d)),
        st.sets(st.text(max_size=2), max_size=3),
    ),
    max_leaves=6,
)


@settings(max_examples=40)
@given(TREES, LEAVES, st.integers(0, 99))
def test_equal_batches_have_equal_checksums_and_others_have_not(tree: Any, leaf: Any, number: int) -> None:
    same = copy.deepcopy(tree)
    if isinstance(same, dict):
        same = dict(reversed(same.items()))
    assert checksum(tree) == checksum(same)
    assert checksum([tree, number]) != checksum([tree, number + 1])
    assert checksum({"x": tree}) != checksum({"y": tree})
    assert checksum((tree, torch.tensor([number]))) != checksum((tree, torch.tensor([number + 1])))


ODD = [
    torch.zeros(3, 4, dtype=torch.bfloat16),
    torch.ones(4, 3, dtype=torch.bool).T,
    torch.tensor(1 + 2j).conj(),
    torch.eye(3).to_sparse(),
    torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    torch.empty(2, device="meta"),
    np.array(["a", None], dtype=object),
    np.array(["2026-01-01"], dtype="datetime64[D]"),
    Counter("aab"),
    torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1)]),
]


@pytest.mark.parametrize("value", ODD)
def test_batches_of_any_kind_have_checksums(value: Any) -> None:
    assert checksum(value) == checksum(copy.deepcopy(value))


def test_a_large_array_is_told_by_a_sample_of_its_elements() -> None:
    rows = torch.randn(64, 3, 64, 64)
    other = rows.clone()
    other[7] = torch.randn(3, 64, 64)
    for kind in (torch.Tensor.clone, torch.Tensor.numpy, torch.Tensor.double):
        assert checksum(kind(rows)) != checksum(kind(other))
    texts = torch.zeros(64, 8192, dtype=torch.int64)
    texts[:, :30] = torch.randint(1, 9999, (64, 30))
    assert checksum(texts) != checksum(texts.roll(1, 0))
