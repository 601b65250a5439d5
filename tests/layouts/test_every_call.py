"""Calls that hand over more than a tensor, over every kind of role: owners make it, the others get what they get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchmetrics import SumMetric

import distmetrics as dm
from distmetrics.testing import run

ROLES = [("shard", "shard"), ("shard", "same"), ("shard", "last"), ("first", "same"), (1, "first")]


def metric(value: int) -> SumMetric:
    made = SumMetric()
    made.update(float(value))
    return made


def samples(value: int, comm: Any, dst: Any) -> Any:
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


def make_all(comm: Any, roles: tuple[Any, Any], same: str, folder: Path) -> None:
    over = dm.layout({"a": 2, "b": 2}, comm=comm, a=roles[0], b=roles[1], same=same)
    value, shards = (over.rank if over.mesh.owns(comm.rank) else 90 + comm.rank), range(2 ** roles.count("shard"))
    assert dm.sync_async(metric(value), comm=over).result() == sum(shards)
    with dm.synced(mine := metric(value), comm=over):
        assert mine.compute() == sum(shards)
    texts, dicts = [f"text {v}" for v in shards], [{"value": v} for v in shards]
    rows, lengths = [[v, 1] for v in shards], [1 + v for v in shards]
    expected = [*shards], texts, rows, lengths, dicts, ([*shards], [None] * len(shards))
    assert samples(value, over, None) == expected
    assert samples(value, over, 0) == (None if over.rank else expected)
    path = folder / f"{same}.jsonl"
    assert dm.gather_samples([value], [value], dst=path, comm=over).tree is None
    dm.barrier(comm=over)
    assert path.read_text() == "".join(f'{{"id": {v}, "sample": {v}}}\n' for v in shards)


@pytest.mark.parametrize("roles", ROLES, ids=str)
def test_every_call(roles: Any, tmp_path: Path) -> None:
    for same in ("exact", "close"):
        run(4, make_all, roles, same, tmp_path)


def test_calls_beside_those_in_the_background() -> None:
    """Each counts its own calls, although a call over the layout came before."""

    def work(comm: Any) -> int:
        over = dm.layout({"dp": 2, "tp": 2}, comm=comm, dp="shard", tp="same")
        total = int(dm.all_reduce(1, comm=over))
        for _ in range(8):
            pending = dm.sync_async(metric(1), comm=over)
            total += int(dm.all_reduce(1, comm=over)) + int(pending.result())
        return total

    assert run(4, work) == [34] * 4
