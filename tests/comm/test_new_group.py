"""Groups that their members alone make: nobody waits under another name, and nobody for ever."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

import distmetrics as dm
from distmetrics.comm.process_group import new_group
from distmetrics.testing import outcomes, run

pytestmark = pytest.mark.gloo


def make(members: list[int], made: list[Any]) -> None:
    """Make groups of some ranks, and talk in each."""
    for _ in range(5):
        if dist.get_rank() in members:
            comm = dm.GroupCommunicator(new_group(members))
            rows = dm.all_gather(dist.get_rank(), comm=comm)
            made.append(rows.tolist())


def in_two_threads(comm: Any) -> list[Any]:
    made: list[list[Any]] = [[], []]
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(make, *each) for each in zip(([0, 1], [0, 2]), made, strict=True)]:
            done.result()
    return made


def test_two_threads_make_groups_at_once() -> None:
    pair, other = [[0, 1]] * 5, [[0, 2]] * 5
    assert run(3, in_two_threads, backend="gloo", limit=60) == [[pair, other], [pair, []], [[], other]]


def in_other_orders(comm: Any) -> list[Any]:
    """Each rank makes groups that it alone is in, torch's and layouts of ours, in between."""
    seen: list[Any] = []
    for step in range(3):
        if comm.rank == step:
            dist.new_group([comm.rank], use_local_synchronization=True)
        ranks = dm.layout({"a": 1, "b": 3}, comm=comm, a="shard", b=("first", "last", 1)[step])
        seen.append(int(dm.broadcast(comm.rank, comm=ranks)))
        pair = dist.new_group([step, (step + 1) % 3])
        members = sorted([step, (step + 2) % 3])
        if comm.rank in members:
            make(members, seen)
        if comm.rank in (step, (step + 1) % 3):
            seen.append(int(dm.all_reduce(1, comm=dm.GroupCommunicator(pair))))
        handle = dm.sync_async(dm.from_function(lambda state: state["n"].sum(), reduce={"n": "sum"}), comm=ranks)
        seen.append(float(handle.result()))
    return seen


def test_ranks_make_groups_in_between_of_their_own() -> None:
    first, second, third = run(3, in_other_orders, backend="gloo", limit=60)
    assert [seen[0] for seen in (first, second, third)] == [0] * 3
    assert {len(first), len(second), len(third)} == {3 * 2 + 2 * 5 + 2}


def not_in_the_background(comm: Any) -> Any:
    if comm.rank == 0:
        return dm.all_reduce(1, comm=comm)
    return dm.Log(comm).flush(wait=False).result()


def failing(comm: Any) -> Any:
    if comm.rank == 0:
        raise ValueError("rank 0 is broken")
    return dm.Log(comm).flush(wait=False).result()


@pytest.mark.parametrize(("work", "kind"), [(not_in_the_background, dm.MismatchError), (failing, dm.PeerLostError)])
def test_a_rank_that_begins_nothing_in_the_background(work: Callable[..., Any], kind: Any) -> None:
    """The others do not wait for it in the making of a group, which nobody watches."""
    ended = outcomes(3, work, backend="gloo", limit=60)
    if work is failing:
        assert isinstance(ended.pop(0).error, ValueError)
    assert all(type(each.error) is kind for each in ended), ended
    assert all("first call in the background" in str(each.error) for each in ended)
