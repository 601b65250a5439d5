"""Every call that takes ``comm=``, over every kind of role: owners make it, the others get what they get."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchmetrics import SumMetric

import distmetrics as dm
from distmetrics import guard
from distmetrics.data import exact
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


def gradients(value: int, comm: Any) -> Any:
    x = torch.tensor(float(value), requires_grad=True)
    rows = dm.all_gather(x, sync_grads=True, comm=comm)
    rows.sum().backward()
    assert x.grad is not None
    return rows.tolist(), float(x.grad)


def epoch(value: int, comm: Any) -> int:
    with guard.guarded_epoch("epoch", comm=comm):
        return int(dm.all_reduce(value, comm=comm))


def logged(value: int, comm: Any) -> float:
    log = dm.Log(comm)
    log.sum("value", value)
    log.flush(wait=False).result()
    log.sum("value", value)
    return log.flush()["value"]


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


def shuffled(value: int, comm: Any) -> Any:
    """Deal out an order that each rank would draw in a way of its own."""
    generator = torch.Generator().manual_seed(value)
    loader = DataLoader(range(8), batch_size=2, shuffle=True, generator=generator)
    batches = [batch.tolist() for batch in exact(loader, comm=comm)]
    return dm.all_gather_cat(torch.tensor(batches), comm=comm).flatten().sort().values.tolist()


def expected_samples(shards: range) -> Any:
    rows = [[value, 1] for value in shards]
    texts = [f"text {value}" for value in shards]
    lengths = [1 + value for value in shards]
    dicts = [{"value": value} for value in shards]
    return [*shards], texts, rows, lengths, dicts, ([*shards], [None] * len(shards))


# Each call, and what it gives where the shards have the values 0, 1, and so on.
CALLS: dict[str, tuple[Any, Any]] = {
    "all_gather": (lambda v, c: dm.all_gather(v, comm=c).tolist(), list),
    "all_gather_cat": (lambda v, c: dm.all_gather_cat(torch.tensor([v]), comm=c).tolist(), list),
    "all_gather_object": (lambda v, c: dm.all_gather_object({"v": v}, comm=c), lambda s: [{"v": v} for v in s]),
    "all_reduce": (lambda v, c: int(dm.all_reduce(v, comm=c)), sum),
    "mean": (lambda v, c: float(dm.mean(float(v), weight=1, comm=c)), lambda s: sum(s) / len(s)),
    "broadcast": (lambda v, c: int(dm.broadcast(v, comm=c)), lambda s: 0),
    "barrier": (lambda v, c: dm.barrier(comm=c), lambda s: None),
    "all_true": (lambda v, c: dm.all_true(v < 50, comm=c), lambda s: True),
    "any_true": (lambda v, c: dm.any_true(v > 50, comm=c), lambda s: False),
    "sync_and_compute": (lambda v, c: float(dm.sync_and_compute(metric(v), comm=c)), sum),
    "sync_async": (lambda v, c: float(dm.sync_async(metric(v), comm=c).result()), sum),
    "synced": (synced, sum),
    "log": (logged, sum),
    "guarded_epoch": (epoch, sum),
    "gather_samples": (samples, expected_samples),
    "gather_samples to a rank": (functools.partial(samples, dst=0), expected_samples),
    "gather_samples to a file": (to_file, lambda s: "".join(f'{{"id": {v}, "sample": {v}}}\n' for v in s)),
    "exact": (shuffled, lambda s: [*range(8)]),
}
ONE_WAY = {"sync_grads": (gradients, lambda s: ([float(v) for v in s], float(len(s))))}


def make_all(comm: Any, names: list[str], roles: tuple[Any, Any], same: str) -> dict[str, Any]:
    over = dm.layout({"a": 2, "b": 2}, comm=comm, a=roles[0], b=roles[1], same=same)
    value = over.rank if over.mesh.owns(comm.rank) else 90 + comm.rank
    calls = CALLS | ONE_WAY
    return {"rank": over.rank, **{name: calls[name][0](value, over) for name in names}}


def check(results: list[Any], names: list[str], roles: tuple[Any, Any]) -> None:
    shards = range(2 ** roles.count("shard"))
    for result in results:
        for name in names:
            expected = (CALLS | ONE_WAY)[name][1](shards)
            if name.endswith("to a rank") and result["rank"]:
                expected = None
            assert result[name] == expected, (name, roles)


@pytest.mark.parametrize("same", ["exact", "close"])
@pytest.mark.parametrize("roles", ROLES, ids=str)
def test_every_call(roles: Any, same: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(run(4, make_all, [*CALLS], roles, same), [*CALLS], roles)


def every_role(comm: Any, place: str) -> Any:
    os.chdir(place)
    return [make_all(comm, [*CALLS], roles, "exact") for roles in ROLES]


@pytest.mark.gloo
def test_on_processes(tmp_path: Path) -> None:
    results = run(4, every_role, str(tmp_path), backend="gloo", limit=90)
    for place, roles in enumerate(ROLES):
        check([each[place] for each in results], [*CALLS], roles)


@pytest.mark.parametrize("roles", ROLES, ids=str)
def test_gradients_flow_back_to_shards_alone(roles: Any) -> None:
    ended = outcomes(4, make_all, [*ONE_WAY], roles, "exact")
    if set(roles) <= {"shard", "same"}:
        check([each.value for each in ended], [*ONE_WAY], roles)
        return
    for each in ended:
        assert isinstance(each.error, dm.InputError)
        assert "gradients cannot flow back" in str(each.error)


def beside_the_background(comm: Any) -> int:
    over = dm.layout({"dp": 2, "tp": 2}, comm=comm, dp="shard", tp="same")
    total = int(dm.all_reduce(1, comm=over))
    for _ in range(20):
        pending = dm.sync_async(metric(1), comm=over)
        total += int(dm.all_reduce(1, comm=over)) + int(pending.result())
    return total


def test_calls_beside_those_in_the_background() -> None:
    """Each counts its own calls, although a call over the layout came before."""
    assert run(4, beside_the_background) == [82] * 4


def test_a_barrier_is_one_of_all_ranks_of_the_mesh() -> None:
    here = []

    def late(comm: Any) -> int:
        over = dm.layout({"dp": 2, "pp": 2}, comm=comm, dp="shard", pp="last")
        if comm.rank == 0:
            time.sleep(0.1)
        here.append(comm.rank)
        dm.barrier(comm=over)
        return len(here)

    assert run(4, late) == [4] * 4


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


def other_ways(comm: Any) -> list[str]:
    raised = []
    for other in OTHERS:
        try:
            disagree(comm, other)
        except dm.DistmetricsError as error:
            raised.append(type(error).__name__)
    return raised


@pytest.mark.gloo
def test_ranks_that_mean_another_layout_on_processes() -> None:
    for raised in run(4, other_ways, backend="gloo", limit=60):
        assert raised == ["MismatchError"] * 3 + ["ConfigurationError"] * 2
