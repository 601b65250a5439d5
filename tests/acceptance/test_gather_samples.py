from __future__ import annotations

import json
import math
import os
import resource
import runpy
import tempfile
from pathlib import Path
from typing import Any

import torch

import distmetrics as dm
from distmetrics import InputError, InputTypeError, MismatchError, gather_samples
from distmetrics.testing import run
from tests.acceptance import ROOT
from tests.acceptance.test_collectives import Counting, caught, odd, on_ranks, told

COUNT, EVERYTHING = 7, [*range(7)]


def columns(samples: Any) -> dict[str, Any]:
    """Columns of every kind, with what some samples of a data set have."""
    return {
        "rows": torch.tensor([[i, 2.5] for i in samples], requires_grad=True).reshape(-1, 2),
        "texts": [f"é {i}" for i in samples],
        "pair": ([torch.arange(i % 3) for i in samples], [None if i % 2 else i for i in samples]),
        "records": [{"label": f"l{i}", "boxes": torch.ones(i % 3, 4)} for i in samples],
        "mixed": [[i, "x", (1.5, None)] if i % 2 else i / 7 for i in samples],
    }


def plain(value: Any) -> Any:
    """Return tensors and sequences as lists."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return value
    return value.tolist() if isinstance(value, torch.Tensor) else [*map(plain, value)]


@on_ranks(1, 2, 3)
def test_each_sample_comes_once_in_the_order_of_ids(comm: Any) -> None:
    """As a DistributedSampler deals them out, in blocks, and where the last rank has all."""
    size, rank, is_last = comm.world_size, comm.rank, comm.rank + 1 == comm.world_size
    strided = [i % COUNT for i in range(-(-COUNT // size) * size)][rank::size]
    blocks = EVERYTHING[rank * 2 : None if is_last else rank * 2 + 2]
    for mine in (strided, blocks, EVERYTHING[::-1] if is_last else []):
        tree = columns(mine) if mine else []  # a rank without samples need not know the tree
        ids, got, dropped = gather_samples(torch.tensor(mine).long(), tree, expected=COUNT)
        assert (plain(ids), plain(got)) == (EVERYTHING, plain(columns(EVERYTHING)))
        assert got["texts"] == columns(EVERYTHING)["texts"]  # equal to a list
        assert (got["rows"].requires_grad, dropped) == (False, -COUNT % size * (mine is strided))
        names = [f"id{i}" for i in mine]
        assert plain(gather_samples(names, mine, expected=COUNT)[1]) == EVERYTHING
        assert (gather_samples(mine, mine, dst=size - 1) is None) != is_last


# Rank 1 of three is the odd one: the error of all, a phrase of it, and what each rank does.
pairs = lambda c, tree, **more: gather_samples([c.rank, c.rank + 3], tree, **more)  # noqa: E731
XY, FILE = ["x", "y"], f"{os.devnull}/no/file"  # nothing can be written there
FAULTS: list[Any] = [
    (InputError, ": 6, 7", lambda c: pairs(c, XY, expected=8)),
    (InputError, ": 4", lambda c: pairs(c, XY, expected=[0, 1, 2, 3, 5])),
    (InputError, ": 5", lambda c: gather_samples([odd(c, 5, c.rank + 3)], [c.rank])),
    (InputError, "['a']", lambda c: pairs(c, {"a": odd(c, ["x"], XY)})),
    (InputTypeError, "['a']", lambda c: pairs(c, {"a": odd(c, [object(), 1], XY)})),
    (InputTypeError, "ids", lambda c: gather_samples(odd(c, torch.ones(2), [1, 2]), XY)),
    (MismatchError, "'a'", lambda c: pairs(c, {odd(c, "a", "b"): XY})),
    (MismatchError, "float64", lambda c: pairs(c, torch.ones(2).to(odd(c, torch.float64, None)))),
    (MismatchError, "[n, 2]", lambda c: pairs(c, torch.ones(odd(c, (2, 2), 2)))),
    (MismatchError, "eval", lambda c: pairs(c, XY, name=odd(c, "eval", "test"))),
    (
        InputTypeError,
        "JSON",
        lambda c: pairs(c, odd(c, [b"", ""], XY), dst=f"{tempfile.gettempdir()}/x"),
    ),
    (InputError, FILE, lambda c: pairs(c, XY, dst=FILE)),
]


@on_ranks(3)
def test_what_cannot_be_gathered_is_one_error_on_every_rank(comm: Any) -> None:
    """It names the ranks; of ids that nobody has, what each rank brought."""
    peers = [error.peers or sorted(error.per_rank) for error in told(comm, FAULTS)]
    assert peers == [[0, 1, 2], (1,), (1, 2), *[(1,)] * 8, (0,)]


@on_ranks(2, backends=("gloo",))
def test_a_file_is_written_whole_or_left_as_it_was(comm: Any) -> None:
    """And some 16 MiB of samples are on their way at a time."""
    values = [(math.nan, math.inf, i / 7)[i % 3] for i in EVERYTHING]
    wanted = [{"id": i, "sample": {"text": f"é {i}", "x": values[i]}} for i in EVERYTHING]
    ids, own = EVERYTHING[comm.rank :: 2], Counting(comm)
    with tempfile.TemporaryDirectory() as mine:
        folder = Path(dm.all_gather_object(mine)[0])
        tree = {"text": [f"é {i}" for i in ids], "x": [values[i] for i in ids]}
        gather_samples(ids, tree, dst=folder / "file")
        every_other = range(comm.rank, 48, 2)
        gather_samples(every_other, ["x" * (1 << 20)] * 24, dst=folder / "large", comm=own)
        assert max(nbytes for _, nbytes in own.sent) < 20 << 20  # of 24 MiB
        largest, unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        if comm.rank == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, unlimited))
        try:
            error = caught(gather_samples, [comm.rank], ["text" * 4096], dst=folder / "file")
        finally:  # torch's FileStore writes as the process ends
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, unlimited))
        assert (type(error), error.peers) == (InputError, (0,))
        dm.barrier()
        lines = [json.loads(line) for line in (folder / "file").read_text().splitlines()]
        assert repr(lines) == repr(wanted)
        assert {path.name for path in folder.iterdir()} == {"file", "large"}
        dm.barrier()


def test_the_harness_gives_the_same_scores_on_any_number_of_ranks() -> None:
    evaluate = runpy.run_path(str(ROOT / "examples" / "evaluation_harness.py"))["evaluate"]
    (scores,) = run(1, evaluate)
    assert 0 < scores["choices"] < 1 < scores["perplexity"]
    assert run(2, evaluate) + run(5, evaluate) == [scores] * 7
