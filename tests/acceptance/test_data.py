"""Every sample once: ``exact``, ``fresh``, and the warning of a loader that repeats samples."""

from __future__ import annotations

import linecache
import re
import warnings
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Generator
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset
from torchmetrics import MeanMetric, SumMetric

from distmetrics import SingleCommunicator, layout, mean, sync_and_compute, synced
from distmetrics.data import RepeatedSamplesWarning, exact, fresh
from distmetrics.errors import DivergedError, InputError, StateError
from distmetrics.testing import outcomes, run
from tests.acceptance import both_backends, same_error

pytestmark = pytest.mark.gloo
BATCHES = [[0, 1, 2], [3], [4, 5, 6, 7], [8], [9, 10]]


class Stream(IterableDataset[Any]):
    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


class Data(list[float]):
    """Counts how often it is read."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)


def numbers(count: int, comm: Any = None, size: int | None = 2, **options: Any) -> DataLoader[Any]:
    """Return a loader of 0, 1, …; with ``comm`` dealt out as people do it, the first ones twice."""
    data = Data(map(float, range(count)))
    if comm is not None:
        options = {"shuffle": False, "num_replicas": comm.world_size, "rank": comm.rank, **options}
        options = {"sampler": DistributedSampler(data, **options)}
    return DataLoader(data, batch_size=size, **options)


def flat(nested: Any) -> list[Any]:
    return list(chain.from_iterable(nested))


def read(loader: Any) -> list[list[int]]:
    return [torch.as_tensor(batch).int().reshape(-1).tolist() for batch in loader]


COUNTS = {"no sample": 0, "one sample": 1, "drop_last": 10}  # of the others 11
KINDS: dict[str, Any] = {
    "map-style": lambda c: numbers(11),
    "shuffled": lambda c: numbers(11, shuffle=True),
    "generator": lambda c: numbers(11, shuffle=True, generator=Generator().manual_seed(c.rank)),
    "DistributedSampler": lambda c: numbers(11, c, shuffle=True, seed=c.rank),
    "one sample": lambda c: numbers(1),
    "no sample": lambda c: numbers(0),
    "drop_last": lambda c: numbers(11, drop_last=True),
    "one by one": lambda c: numbers(11, size=None),
    "workers": lambda c: numbers(11, num_workers=2, multiprocessing_context="fork"),
    "stream": lambda c: DataLoader(Stream(range(11)), batch_size=2),
    "batch sampler": lambda c: DataLoader(range(11), batch_sampler=BATCHES),
    "any iterable": lambda c: BATCHES,
}


def deal(comm: Any) -> dict[str, Any]:
    torch.manual_seed(comm.rank)  # what a rank draws by itself is other than on the others
    loaders = {kind: exact(make(comm)) for kind, make in KINDS.items()}
    shuffled = numbers(30, shuffle=True, collate_fn=tuple)
    whole = exact(shuffled, layout({"tp": comm.world_size}, tp="same"))
    return {kind: (read(loader), read(exact(loader))) for kind, loader in loaders.items()} | {
        "seeds": [read(exact(shuffled, seed=seed)) for seed in (1, 1, 2)],
        "whole": [read(whole), read(exact(shuffled, comm=SingleCommunicator()))],
        "few": (evaluate(exact(numbers(1))), float(mean(comm.rank, weight=comm.rank == 0))),
        "kept": (len(whole), whole.batch_size, {type(batch) for batch in whole}),
    }


@pytest.mark.parametrize("world_size", [2, 3])
def test_exact_gives_each_sample_to_one_rank(world_size: int) -> None:
    ranks = run(world_size, deal, backend="gloo")
    for kind in KINDS:
        for parts in zip(*(rank[kind] for rank in ranks), strict=True):  # of one pass
            assert sorted(flat(flat(parts))) == list(range(COUNTS.get(kind, 11))), kind
            batches, samples = [len(part) for part in parts], [len(flat(part)) for part in parts]
            assert max(batches) - min(batches) <= 1, kind
            if kind not in ("batch sampler", "any iterable"):  # whose batches are not alike
                assert max(samples) - min(samples) <= 2 >= max(map(len, flat(parts)), default=0)
    for rank in ranks:
        assert rank["seeds"][0] == rank["seeds"][1] != rank["seeds"][2]
        assert rank["few"] == (0.0, 0.0)
        assert rank["kept"] == (15, 2, {tuple})
        assert [sorted(flat(each)) for each in rank["whole"]] == [list(range(30))] * 2
        assert rank["whole"][0] == ranks[0]["whole"][0]  # who shares samples reads in one order


def fill_up(comm: Any, count: int, stream: bool) -> list[list[str]]:
    """Return the rows that are fresh in each step."""
    steps, loader = [], numbers(count)
    for batch in exact(list(loader) if stream else loader, equal_batches=True):
        texts = [str(int(row)) for row in batch]
        assert texts  # for the model
        kept = fresh({"x": (batch,), "texts": texts, "boxes": [{}] * len(batch), "n": batch.sum()})
        assert [str(int(row)) for row in kept["x"][0]] == kept["texts"]
        assert (len(kept["boxes"]), kept["n"]) == (len(kept["texts"]), batch.sum())
        steps.append(kept["texts"])
    return steps


@both_backends
@pytest.mark.parametrize("stream", [False, True])
def test_equal_batches_are_filled_up_and_fresh_cuts_the_filling(backend: str, stream: bool) -> None:
    for count, steps in ((1, 1), (7, 2)):
        ranks = run(3, fill_up, count, stream, backend=backend)
        assert list(map(len, ranks)) == [steps] * 3
        assert sorted(flat(flat(ranks))) == list(map(str, range(count)))
    with pytest.raises(InputError):
        fresh(torch.ones(2))  # no loader is read


EARLY = exact(numbers(9))
REFUSED: dict[str, Any] = {
    "other data": lambda rank: exact(numbers(9 + rank)),
    "other batches": lambda rank: exact(numbers(9, size=2 + rank)),
    "other order": lambda rank: exact(numbers(9, shuffle=rank > 0)),
    "other seed": lambda rank: exact(numbers(9, shuffle=True), seed=rank),
    "other equal_batches": lambda rank: exact(numbers(9), equal_batches=rank > 0),
    "a part of its own": lambda rank: exact(DataLoader(Subset(range(8), range(rank, 8, 2)))),
    "no loader": lambda rank: exact(None),
    "made before there were ranks": lambda rank: [*EARLY],
    "left out by rank 1": lambda rank: None if rank else exact(numbers(9)),
}


def refuse(comm: Any, kind: str) -> None:
    REFUSED[kind](comm.rank)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_dealt_out_is_an_error_on_every_rank(kind: str) -> None:
    ended = outcomes(2, refuse, kind, backend="gloo")
    if kind == "left out by rank 1":
        same_error(ended[:1], DivergedError, "rank 1")
    else:
        same_error(ended, InputError)


def evaluate(val_loader: Any, metric: Any = None, cut: Any = None) -> float:
    metric = metric or MeanMetric()
    for batch in val_loader:
        metric.update(cut(batch) if cut else batch)
    return float(sync_and_compute(metric))


def naive(comm: Any) -> list[float]:
    """Evaluate over one loader three times, over another, and over one in a block."""
    one, two, three, metric = *(numbers(count, comm) for count in (11, 13, 19)), MeanMetric()
    values = [evaluate(loader) for loader in (one, one, one, two)]
    assert one.dataset.reads == 3 * len(one.sampler)  # the warning needs no data
    for batch in three:
        metric.update(batch)
    with synced(metric):
        return [*values, float(metric.compute())]


def unread(comm: Any) -> None:
    """Feed what the user has cut; a loader that repeats is read beside it."""
    beside, mine = numbers(11, comm), torch.arange(11.0)[comm.rank :: comm.world_size]
    assert [*beside]  # read for something else
    val_loader = DataLoader(mine, batch_size=2)
    assert evaluate(val_loader) == 5.0


def strict(comm: Any) -> None:
    metric = SumMetric(sync_on_compute=False)
    try:
        evaluate(numbers(11, comm), metric)
    finally:
        assert metric.compute() == sum(range(comm.rank, 11, 2))  # it keeps what it has


PROGRAMS: dict[str, Any] = {
    "exact": lambda comm: evaluate(exact(numbers(11, comm))),
    "fresh": lambda comm: evaluate(exact(numbers(11, comm), equal_batches=True), cut=fresh),
    "divides": lambda comm: evaluate(numbers(12, comm)),
    "drop_last": lambda comm: evaluate(numbers(11, comm, drop_last=True)),
    "for training": lambda comm: evaluate(numbers(11, comm, shuffle=True)),
    "unread": unread,
}


def told(comm: Any, program: Any, action: Any = "always") -> tuple[Any, list[str]]:
    """Return what a program returns, and its warnings, each with the line that it points at."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action, RepeatedSamplesWarning)
        value = program(comm)
    mine = [each for each in seen if each.category is RepeatedSamplesWarning]
    return value, [f"{linecache.getline(w.filename, w.lineno)}{w.message}" for w in mine]


def right(comm: Any) -> dict[str, list[str]]:
    texts = {name: told(comm, program)[1] for name, program in PROGRAMS.items()}
    return texts | {"ignored": told(comm, naive, "ignore")[1]}


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_loader_that_repeats_samples_is_told_once_on_rank_0(world_size: int) -> None:
    (values, texts), *others = run(world_size, told, naive, backend="gloo")
    more = [(count, -count % world_size) for count in (11, 13, 19)]
    means = [(sum(range(count)) + sum(range(n))) / (count + n) for count, n in more]
    assert values == pytest.approx([*means[:1] * 3, *means[1:]])  # the sync is done all the same
    assert len(texts) == 3
    for text, (count, n) in zip(texts, more, strict=True):
        assert f"{n} of {count + n} samples" in text
        assert "distmetrics.data.exact(" in text  # what mends it
        assert re.search(r"(sync_and_compute|with synced)\(metric\)", text)  # the user's line
    assert [texts for _, texts in others] == [[]] * (world_size - 1)


def test_a_right_program_is_not_warned() -> None:
    for world_size in (2, 3):
        for rank in run(world_size, right, backend="gloo"):
            assert not any(rank.values()), rank
    assert run(1, told, naive, backend="gloo") == [([5.0, 5.0, 5.0, 6.0, 9.0], [])]


@pytest.mark.parametrize("how", ["strict", "error"])
def test_strict_mode_makes_an_error_of_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "strict":
        monkeypatch.setenv("DISTMETRICS_GUARD", "strict")
    ended = outcomes(2, told, strict, "error" if how == "error" else "always", backend="gloo")
    same_error(ended, StateError, "1 of 12 samples", "distmetrics.data.exact(")
