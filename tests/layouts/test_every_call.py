"""Calls that hand over more than a tensor, over every kind of role: owners make it, the others get what they get."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torchmetrics import SumMetric

import distmetrics as dm
from distmetrics.testing import outcomes, run
from tests.backends import same_error

ROLES = [("shard", "shard"), ("shard", "same"), ("shard", "last"), ("first", "same"), (1, "first")]


def metric(value: int) -> SumMetric:
    made = SumMetric()
    made.update(float(value))
    return made


def synced(value: int, comm: Any) -> float:
    mine = metric(value)
    with dm.synced(mine, comm=comm):
        return float(mine.compute())


def samples(value: int, comm: Any, dst: Any = None) -> Any:
    tree = {
        "text": [f"text {value}"],
        "row": torch.tensor([[value, 1]]),
        "ragged": [torch.ones(1 + value)],
        "dict": [{"value": value}],
        "pair": ([value], [None]),
    }
    gathered = dm.gather_samples([value], tree, dst=dst, comm=comm)
    if gathered is None:
        return None
    columns = gathered.tree
    rows = [columns["row"].tolist(), [len(each) for each in columns["ragged"]]]
    return gathered.ids.tolist(), [*columns["text"]], *rows, [*columns["dict"]], columns["pair"]


def to_file(value: int, comm: Any) -> Any:
    path = Path(f"{comm.mesh}.jsonl")
    assert dm.gather_samples([value], [value], dst=path, comm=comm).tree is None
    dm.barrier(comm=comm)
    return path.read_text()


def expected_samples(shards: range) -> Any:
    rows = [[value, 1] for value in shards]
    texts = [f"text {value}" for value in shards]
    lengths = [1 + value for value in shards]
    dicts = [{"value": value} for value in shards]
    return [*shards], texts, rows, lengths, dicts, ([*shards], [None] * len(shards))


# Each call, and what it gives where the shards have the values 0, 1, and so on.
CALLS: dict[str, tuple[Any, Any]] = {
    "sync_async": (lambda v, c: float(dm.sync_async(metric(v), comm=c).result()), sum),
    "synced": (synced, sum),
    "gather_samples": (samples, expected_samples),
    "gather_samples to a rank": (functools.partial(samples, dst=0), expected_samples),
    "gather_samples to a file": (to_file, lambda s: "".join(f'{{"id": {v}, "sample": {v}}}\n' for v in s)),
}


def make_all(comm: Any, roles: tuple[Any, Any], same: str) -> dict[str, Any]:
    over = dm.layout({"a": 2, "b": 2}, comm=comm, a=roles[0], b=roles[1], same=same)
    value = over.rank if over.mesh.owns(comm.rank) else 90 + comm.rank
    return {"rank": over.rank, **{name: CALLS[name][0](value, over) for name in CALLS}}


def check(results: list[Any], roles: tuple[Any, Any]) -> None:
    shards = range(2 ** roles.count("shard"))
    for result in results:
        for name in CALLS:
            expected = CALLS[name][1](shards)
            if name.endswith("to a rank") and result["rank"]:
                expected = None
            assert result[name] == expected, (name, roles)


@pytest.mark.parametrize("roles", ROLES, ids=str)
def test_every_call(roles: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for same in ("exact", "close"):
        check(run(4, make_all, roles, same), roles)


def beside_the_background(comm: Any) -> int:
    over = dm.layout({"dp": 2, "tp": 2}, comm=comm, dp="shard", tp="same")
    total = int(dm.all_reduce(1, comm=over))
    for _ in range(8):
        pending = dm.sync_async(metric(1), comm=over)
        total += int(dm.all_reduce(1, comm=over)) + int(pending.result())
    return total


def test_calls_beside_those_in_the_background() -> None:
    """Each counts its own calls, although a call over the layout came before."""
    assert run(4, beside_the_background) == [34] * 4


OTHERS: list[Any] = [{"b": "shard"}, {"b": "first"}, {"b": "same", "same": "close"}, {"b": "some"}, {}]


def disagree(comm: Any, other: dict[str, Any]) -> Any:
    options = other if comm.rank == 1 else {"b": "same"}
    return dm.layout({"a": 2, "b": 2}, comm=comm, a="shard", **options).world_size


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_ranks_that_mean_another_layout(other: Any) -> None:
    """They would wait for each other in groups that the others never make."""
    kind = dm.MismatchError if OTHERS.index(other) < 3 else dm.ConfigurationError
    error = same_error(outcomes(4, disagree, other), kind)
    assert "layout of a 2 shard, b 2 same" in str(error)
