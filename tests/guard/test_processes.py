"""What only real processes show of the guard, and the acceptance tests do not hold."""

from __future__ import annotations

import json
import threading
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import distmetrics
from distmetrics import DivergedError, PeerLostError, guard
from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.guard import use_settings
from distmetrics.testing import outcomes, run
from tests.guard import ranks

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]


def guards() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("distmetrics")]


class Threads(Dataset[Any]):
    """A data set whose sample is the number of guards in the process that reads it."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return len(guards())


def guards_of_children(comm: Any) -> tuple[list[str], list[int]]:
    ways = ("fork", "spawn")[: 2 - comm.rank]  # the other takes seconds
    loaders = [DataLoader(Threads(), num_workers=1, multiprocessing_context=how) for how in ways]
    return guards(), [int(batch) for loader in loaders for batch in loader]


def test_a_rank_has_one_guard_and_its_children_have_none() -> None:
    """Workers of a loader inherit the group, or the launcher's variables."""
    found = run(2, guards_of_children, backend="gloo")
    assert found == [(["distmetrics guard"], [0, 0]), (["distmetrics guard"], [0])]


def with_late_settings(rank: int, path: str) -> tuple[str, float, list[str]]:
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    try:
        with guard.use_settings(mode="warn", timeout=7):
            distmetrics.barrier()
        made: Any = GroupCommunicator.of(dist.group.WORLD).watcher
        return made.settings.mode, made.settings.timeout, guards()
    finally:
        dist.destroy_process_group()


def test_settings_are_those_of_the_first_communicator(tmp_path: Path) -> None:
    """The guard is there before it."""
    with get_context("forkserver").Pool(2) as pool:
        path = str(tmp_path / "store")
        found = pool.starmap_async(with_late_settings, [(0, path), (1, path)], chunksize=1).get(60)
    assert found == [("warn", 7, ["distmetrics guard"])] * 2


@pytest.mark.parametrize("raises", [False, True])
def test_a_report_of_every_rank(tmp_path: Path, raises: bool) -> None:
    """Also of the one that is busy elsewhere: its guard writes for it, or it is ended by who started it."""
    size = 2 + raises  # then the error does not speak of the one that is busy
    with use_settings(timeout=60 if raises else 1.5, report=tmp_path):
        outcomes(size, ranks.one_is_busy, raises, backend="gloo", limit=60)
    late, busy = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, size - 1))
    assert (late["error"]["kind"], busy["error"]) == ("PeerLostError" if raises else "DivergedError", None)
    assert "tests/guard/ranks.py" in busy["where"][0]
    assert "multiprocessing" not in str(busy["where"])
    last = late["calls"][-1]
    assert (last["op"], last["ended"], last["group"]) == ('all_reduce sum "sum 1"', None, "world")
    assert busy["calls"][-1]["op"] == 'all_reduce sum "sum 0"'


def test_watched_collectives_that_torch_makes_in_other_ways() -> None:
    """Uneven ones; objects; inside torch's coalescing manager a call has no work of its own to wait for.

    Blocks of two threads put torch's functions back, whichever ends first.
    """
    first, second = run(2, ranks.watched, backend="gloo", limit=60)
    assert first == [[0, 1], [0, 0, 1], 2.0, 2.0, [2.0, 2.0], True]
    assert second == [[0, 1], [1, 2, 3], 2.0, 2.0, [2.0, 2.0], True]


def test_a_rank_that_never_comes_to_a_watched_collective() -> None:
    error = outcomes(2, ranks.watched_and_alone, backend="gloo", limit=60)[0].error
    assert isinstance(error, PeerLostError), error
    assert "raised ValueError: a bad batch" in str(error)


def test_a_rank_that_calls_us_where_others_are_in_their_backward_pass() -> None:
    """And not at the deadline; with the line of the rank that has gone on."""
    error = outcomes(2, ranks.loop, "calls alone", backend="gloo", limit=60)[1].error
    assert isinstance(error, DivergedError), error
    assert str(error).startswith("rank 0 waits in a collective of torch.distributed, and this rank in another\n")
    assert "is in a backward pass or DistributedDataParallel  tests/guard/ranks.py:" in str(error)


def test_a_rank_that_only_takes_its_time_is_not_blamed() -> None:
    """Whatever it does meanwhile, in its backward pass and elsewhere, for longer than one that is stuck is watched."""
    assert all(run(3, ranks.loops, backend="gloo", limit=100))
