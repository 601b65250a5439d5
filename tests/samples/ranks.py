"""Samples of every kind, and what ranks do with them; light to import, since every process imports it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import distmetrics as dm
from distmetrics.comm.communicator import Communicator

TEXTS = ("", "a", "ümlaut", "\ud800", "new\nline", "日本", "zero\0", "long " * 40)


def sample(index: int) -> dict[str, Any]:
    """One sample by itself."""
    return {
        "rows": torch.tensor([index, 2.5]),
        "scalar": torch.tensor(index, dtype=torch.int16),
        "half": torch.full((2, 1), index / 3, dtype=torch.bfloat16),
        "text": f"text {index} é",
        "odd text": TEXTS[index % len(TEXTS)],
        "ragged": torch.arange(float(index % 4)).reshape(-1, 1),
        "number": index * 0.1,
        "integer": index - 300,
        "large": 3**index,
        "flag": index % 3 == 0,
        "maybe": None if index % 2 else index,
        "mixed": [index, "x", (1.5, None)],
        "record": {"label": f"l{index}", "score": index / 7, "boxes": torch.ones(index % 3, 4)},
        "odd record": {"a": 1} if index % 2 else {"b": {2, 3}},
        "empty": {},
        "pair": (index, str(index)),
    }


KINDS = tuple(sample(0))
STACKED = ("rows", "scalar", "half")


def batch(indices: Sequence[int], kinds: Sequence[str] = KINDS) -> dict[str, Any]:
    """The tree of some samples."""
    tree: dict[str, Any] = {}
    for kind in kinds:
        values = [sample(index)[kind] for index in indices]
        if kind in STACKED:
            empty = sample(0)[kind]
            tree[kind] = torch.stack(values) if values else empty.new_empty((0, *empty.shape))
        elif kind == "pair":
            tree[kind] = ([value[0] for value in values], [value[1] for value in values])
        else:
            tree[kind] = values
    return tree


def same(one: Any, other: Any) -> bool:
    """Equal, tensors within too, and of the same types."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and [*one] == [*other] and all(same(one[key], other[key]) for key in one)
    if hasattr(one, "__getitem__") and not isinstance(one, str):
        return (
            isinstance(one, tuple) == isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
        )
    return type(one) is type(other) and bool(one == other)


def deal(count: int, world_size: int, how: str) -> list[list[int]]:
    """Which samples each rank has, as samplers deal them."""
    everything = [*range(count)]
    if how == "strided":
        return [everything[rank::world_size] for rank in range(world_size)]
    if how == "padded":  # as torch's DistributedSampler does
        total = -(-count // world_size) * world_size
        return [(everything * 2)[rank:total:world_size] for rank in range(world_size)]
    if how == "blocks":
        size = -(-count // world_size)
        return [everything[rank * size : (rank + 1) * size] for rank in range(world_size)]
    if how == "one rank has all":
        return [everything if rank == world_size - 1 else [] for rank in range(world_size)]
    if how == "all ranks have all":
        return [everything] * world_size
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count)).tolist()
    return [order[rank::world_size] for rank in range(world_size)]


SAMPLERS = ("strided", "padded", "blocks", "one rank has all", "all ranks have all", "shuffled")


def digest_of(gathered: Any) -> str:
    """SHA-256 of all that was gathered."""
    ids, tree, _ = gathered
    parts = [[*map(repr, ids)], *([key, *map(repr, values)] for key, values in tree.items() if key != "pair")]
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()


def gathers_every_kind(comm: Communicator, count: int = 20) -> list[str]:
    """Whoever has what, all ranks get the same; returns digests, by sampler."""
    digests = []
    for how in SAMPLERS:
        mine = deal(count, comm.world_size, how)[comm.rank]
        gathered = dm.gather_samples(mine, batch(mine) if mine else [], expected=count, comm=comm)
        assert gathered is not None
        wanted = batch(range(count))
        for kind in KINDS:
            assert same(gathered.tree[kind], wanted[kind]), (how, kind)
        assert gathered.ids.tolist() == [*range(count)]
        digests.append(digest_of(gathered))
    return digests


def gathers_to_one(comm: Communicator) -> None:
    last = comm.world_size - 1
    mine = deal(30, comm.world_size, "padded")[comm.rank]
    gathered = dm.gather_samples([f"id {index:02}" for index in mine], batch(mine), dst=last, comm=comm)
    if comm.rank != last:
        assert gathered is None
        return
    assert gathered is not None
    assert gathered.ids == [f"id {index:02}" for index in range(30)]
    assert all(same(gathered.tree[kind], batch(range(30))[kind]) for kind in KINDS)


PLAIN = ("rows", "half", "text", "odd text", "ragged", "number", "large", "flag", "maybe", "mixed", "record", "pair")


def lines_of(count: int) -> list[Any]:
    """What a file of samples has, read as JSON."""
    wanted = []
    for index in range(count):
        one = {kind: sample(index)[kind] for kind in PLAIN}
        wanted.append(json.loads(json.dumps({"id": index, "sample": one}, default=lambda x: x.tolist())))
    return wanted


def gathers_to_a_file(comm: Communicator, path: Path, count: int = 30) -> None:
    mine = deal(count, comm.world_size, "shuffled")[comm.rank]
    gathered = dm.gather_samples(mine, batch(mine, PLAIN), dst=path, expected=range(count), comm=comm)
    assert gathered is not None
    assert gathered.tree is None
    assert gathered.ids.tolist() == [*range(count)]
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines_of(count)
