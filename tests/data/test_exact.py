"""Every sample on exactly one rank, as many batches on all ranks where that can be, and errors on every rank."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    WeightedRandomSampler,
)

from distmetrics.data import exact, fresh
from distmetrics.data.exact import part_of
from distmetrics.data.unwrap import unwrap
from distmetrics.errors import InputError
from distmetrics.testing import outcomes, run


def read(loader: Any) -> list[list[int]]:
    return [torch.as_tensor(batch).reshape(-1).tolist() for batch in loader]


def flat(parts: list[list[list[int]]]) -> list[int]:
    return [row for batches in parts for batch in batches for row in batch]


@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 5), st.booleans(), st.booleans())
def test_every_sample_once_and_as_many_batches(count, size, world, in_rounds, drop_last):
    loader = DataLoader(range(count), batch_size=size, drop_last=drop_last)
    kept = flat([read(loader)])
    parts = [part_of(unwrap(loader), world, rank, in_rounds=in_rounds) for rank in range(world)]
    batches = [read(part) for part in parts]
    assert sorted(flat(batches)) == kept
    counts = list(map(len, batches))
    assert counts == [len(part) for part in parts]
    assert max(counts) - min(counts) <= 1
    if len(kept) >= world and (size >= 2 or len(kept) % world == 0):
        assert len(set(counts)) == 1
    rounds = [flat([list(batch)]) for batch in itertools.zip_longest(*batches, fillvalue=[])]
    assert list(itertools.chain(*(rounds if in_rounds else [flat(batches)]))) == kept
    assert [part.own_sampler.counts() for part in parts] == [(count, min(counts), max(counts)) for count in counts]
    for whole in (loader, list(loader)):  # a stream of batches, too
        filled = [part_of(unwrap(whole), world, rank, equal_batches=True) for rank in range(world)]
        rows = [[fresh(batch).tolist() for batch in part] for part in filled]
        assert sorted(flat(rows)) == kept
        assert len({*map(len, rows), *map(len, filled)}) == 1


class Python(Sampler[int]):
    """Draws from the global generator of Python."""

    def __len__(self) -> int:
        return 9

    def __iter__(self) -> Any:
        order = list(range(9))
        random.shuffle(order)
        return iter(order)


LOADERS = {
    "python": lambda: DataLoader(range(9), batch_size=2, sampler=Python()),
    "batch sampler": lambda: DataLoader(torch.arange(9), sampler=BatchSampler(range(9), 2, False), batch_size=None),
}


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_of_all_kinds_twice_over(kind: str, equal: bool) -> None:
    """Each epoch, and exact of exact, also where one rank has had a look at a batch before."""

    def job(comm: Any) -> Any:
        loader = exact(LOADERS[kind](), equal_batches=equal)
        if comm.rank == 0:
            next(iter(loader))
        epochs = [read(fresh(torch.as_tensor(batch)) if equal else batch for batch in loader) for _ in range(2)]
        return [*epochs, read(exact(loader))]

    for epoch in zip(*run(3, job), strict=True):
        assert sorted(flat(list(epoch))) == list(range(9))


class Disturbed(RandomSampler):
    """Another thread draws from the process's generator first, as torch does for workers when a loader is read."""

    def __init__(self, draws: int) -> None:
        super().__init__(range(9))
        self.draws = draws

    def __iter__(self) -> Any:
        thread = threading.Thread(target=torch.rand, args=(self.draws,))
        thread.start()
        thread.join()
        return super().__iter__()


def test_other_threads_do_not_disturb_an_order() -> None:
    parts = run(3, lambda comm: read(exact(DataLoader(range(9), batch_size=2, sampler=Disturbed(comm.rank)))))
    assert sorted(flat(parts)) == list(range(9))


def test_workers_that_persist_give_each_sample_once_in_every_pass() -> None:
    """Which rows count follows from the number of a batch, so workers may not change the order."""
    for equal in (False, True):
        parts = []
        for rank in range(2):
            options = {"num_workers": 2, "persistent_workers": True, "in_order": False}
            loader = DataLoader(range(7), batch_size=2, shuffle=True, **options)  # type: ignore[arg-type]
            parts.append(part_of(unwrap(loader), 2, rank, equal_batches=equal))
            assert parts[-1].in_order
        for _ in range(2):
            assert sorted(flat([[fresh(batch).tolist() for batch in part] for part in parts])) == list(range(7))


class Backwards:
    """A sampler by its methods alone; a shuffled epoch is marked by its first key."""

    epoch = 0

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Any:
        return iter([8, 6, 4, 2, self.epoch])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("batched", [False, True])
def test_keys_of_any_kind_are_what_is_dealt_out(batched: bool) -> None:
    """A list of places, or a class of one's own that is no ``Sampler``, not the first places of the data."""
    for keys in ([8, 6, 4, 2, 0], Backwards()):
        options = {"batch_sampler": BatchSampler(keys, 2, False)} if batched else {"sampler": keys}
        parts = [part_of(unwrap(DataLoader(range(9), **options)), 2, rank) for rank in range(2)]
        assert flat([read(part) for part in parts]) == [8, 6, 4, 2, 0]
    for part in parts:
        (part.batch_sampler or part.sampler).set_epoch(1)
    assert flat([read(part) for part in parts]) == [8, 6, 4, 2, 1]


def test_a_weighted_sampler_deals_out_one_draw_and_an_epoch_is_of_one_process() -> None:
    def drawn(rank: int) -> Any:
        return WeightedRandomSampler([1.0, 2.0, 3.0], 20, generator=torch.Generator().manual_seed(rank))

    def job(comm: Any) -> Any:
        sampler: Any = DistributedSampler(range(9), comm.world_size, comm.rank, seed=5)
        loader = exact(DataLoader(range(9), batch_size=2, sampler=sampler))
        loader.set_epoch(1)
        return read(exact(DataLoader(range(3), batch_size=4, sampler=drawn(comm.rank)))), read(loader)

    weighted, epoch = zip(*run(2, job), strict=True)
    assert flat(weighted) == list(drawn(0))
    whole = DistributedSampler(range(9), 1, 0, seed=5)
    whole.set_epoch(1)
    assert flat(epoch) == [*whole]


class Odd(DistributedSampler[Any]):
    """Deals out half of the data."""

    def __init__(self, rank: int) -> None:
        super().__init__(range(40), 2, rank)
        self.total_size = 20


class Endless(Sampler[int]):
    """Has no length."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda rank: DataLoader(range(9), sampler=Endless() if rank else None), "samplers a length"),
        (lambda rank: DataLoader(Subset(range(8), np.roll(range(8), rank)), batch_size=2), "of a list with checksum"),
        (lambda rank: DataLoader(range(40), sampler=Odd(rank)), "can't be looked through"),
    ],
)
def test_what_cannot_be_dealt_out_is_an_error_on_every_rank(make: Any, text: str) -> None:
    def job(comm: Any) -> str:
        with pytest.raises(InputError) as refused:
            exact(make(comm.rank))
        return str(refused.value)

    assert all(text in error for error in run(2, job))


def test_fresh_does_not_guess_between_loaders_that_are_read_in_turn() -> None:
    """Loaders that fill up in different rounds, also begun anew; in loops in loops the inner one's rows are meant."""

    def filled(count: int) -> Any:
        return exact(DataLoader(range(count), batch_size=1), equal_batches=True)

    def in_turn(comm: Any) -> None:
        for first, second in zip(filled(3), filled(4), strict=True):
            fresh(first + second)

    def begun_anew(comm: Any) -> None:
        short = filled(3)
        batches = iter(short)
        for batch in filled(9):
            fresh(batch)
            if next(batches, None) is None:
                batches = iter(short)
                next(batches)

    def nested(comm: Any) -> list[list[int]]:
        return [fresh(inner).tolist() for _ in filled(1) for inner in filled(3)]

    for loops in (in_turn, begun_anew):
        error = outcomes(2, loops)[0].error
        assert isinstance(error, InputError)
        assert "read in turn" in str(error)
    assert sorted(flat(run(2, nested))) == [0, 1, 2]
