"""What only real processes show of the guard, and the acceptance tests do not hold."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import distmetrics as dm
from distmetrics import DivergedError, PeerLostError, guard
from distmetrics.cli.postmortem import merge, parting, read
from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.guard import use_settings
from distmetrics.testing import outcomes, run

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]
ONE = torch.ones(3)
LONG = 1.5  # seconds; one that is stuck is watched for less


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
        with use_settings(mode="warn", timeout=7):
            dm.barrier()
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


def one_is_busy(comm: Any, raises: bool) -> None:
    """Sum; then the last rank does something else, for longer than who started it waits, and rank 1 may raise."""
    dm.all_reduce(ONE, name="sum 0")
    if comm.rank == comm.world_size - 1:
        time.sleep(60)
    if comm.rank == 1 and raises:
        raise ValueError("a bad batch")
    another_sum()


def another_sum() -> None:
    dm.all_reduce(ONE, name="sum 1")


@pytest.mark.parametrize("raises", [False, True])
def test_a_report_of_every_rank(tmp_path: Path, raises: bool) -> None:
    """Also of the one that is busy elsewhere: its guard writes for it, or it is ended by who started it."""
    size = 2 + raises  # then the error does not speak of the one that is busy
    with use_settings(timeout=60 if raises else 1.5, report=tmp_path):
        outcomes(size, one_is_busy, raises, backend="gloo", limit=60)
    late, busy = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, size - 1))
    assert (late["error"]["kind"], busy["error"]) == ("PeerLostError" if raises else "DivergedError", None)
    assert "tests/guard/test_processes.py" in busy["where"][0]
    assert "multiprocessing" not in str(busy["where"])
    assert [line.rpartition(" in ")[2] for line in late["where"][:2]] == ["another_sum", "one_is_busy"]
    last = late["calls"][-1]
    assert (last["op"], last["ended"], last["group"]) == ('all_reduce sum "sum 1"', None, "world")
    assert busy["calls"][-1]["op"] == 'all_reduce sum "sum 0"'


# --- collectives of torch's own inside guard.watch() ----------------------------------------------------------------


def watched(comm: Any) -> list[Any]:
    """Uneven ones, objects, and those that torch collects; then blocks of two threads, which end in turn."""
    size, x, y, before = comm.world_size, torch.ones(1), torch.ones(1), dist.all_reduce
    objects: list[Any] = [None] * size
    uneven = torch.arange(size + comm.rank * size)
    exchanged = torch.empty(sum(1 + r for r in range(size)), dtype=uneven.dtype)
    with guard.watch():
        dist.all_gather_object(objects, comm.rank)
        dist.all_to_all_single(exchanged, uneven, [1 + r for r in range(size)], [1 + comm.rank] * size)
        with dist.distributed_c10d._coalescing_manager():
            dist.all_reduce(x)
            dist.all_reduce(y)
        direct = comm.all_reduce(torch.ones(2), "sum")
    second_began, first_ended = threading.Event(), threading.Event()

    def first() -> None:
        with guard.watch():
            second_began.wait(10)
        first_ended.set()

    thread = threading.Thread(target=first)
    thread.start()
    with guard.watch():
        second_began.set()
        first_ended.wait(10)
        is_watched = dist.all_reduce is not before
    thread.join()
    back = is_watched and dist.all_reduce is before
    return [objects, exchanged.tolist(), float(x), float(y), direct.tolist(), back]


def watched_and_alone(comm: Any) -> None:
    """The wait of a watched collective is watched as well."""
    with guard.watch():
        dist.all_reduce(ONE.clone(), async_op=True).wait()
        comm.all_reduce(ONE, "sum")
        dm.all_gather(torch.ones(10_000))  # in two collectives
        if comm.rank:
            raise ValueError("a bad batch")
        dist.all_reduce(ONE.clone())


def watched_and_elsewhere(comm: Any) -> None:
    """Another call of torch's own that is not watched."""
    all_reduce = dist.all_reduce
    with guard.watch():
        dm.all_reduce(ONE) if comm.rank else all_reduce(ONE.clone())


def test_watched_collectives_that_torch_makes_in_other_ways() -> None:
    """Uneven ones; objects; inside torch's coalescing manager a call has no work of its own to wait for.

    Blocks of two threads put torch's functions back, whichever ends first.
    """
    first, second = run(2, watched, backend="gloo", limit=60)
    assert first == [[0, 1], [0, 0, 1], 2.0, 2.0, [2.0, 2.0], True]
    assert second == [[0, 1], [1, 2, 3], 2.0, 2.0, [2.0, 2.0], True]


def test_a_rank_that_never_comes_to_a_watched_collective(tmp_path: Path) -> None:
    """A post-mortem counts the user's calls, not the rounds in which ranks compare them."""
    with use_settings(report=tmp_path):
        error = outcomes(2, watched_and_alone, backend="gloo", limit=60)[0].error
    assert isinstance(error, PeerLostError), error
    assert "raised ValueError: a bad batch" in str(error)
    assert parting(merge(read(tmp_path))).startswith(
        "rank 1 did not come to call 4 of world, torch.distributed.all_reduce sum\n"
    )


def test_who_watches_is_not_advised_to_watch() -> None:
    error = outcomes(2, watched_and_elsewhere, backend="gloo", limit=60)[1].error
    assert isinstance(error, DivergedError), error
    assert "is in torch.distributed.all_reduce" in str(error)
    assert error.do == "make every rank call the same collectives, in the same order."


# --- a training loop of DistributedDataParallel ---------------------------------------------------------------------


class Slow(nn.Module):
    """Passes its input on; its backward pass may take long, in C code that no frame of Python shows, or asleep."""

    how = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "sleeps in backward":
            x.register_hook(lambda gradient: time.sleep(LONG))
        if self.how != "computes in backward":
            return x
        product = x.sum() * torch.ones(1000, 1000)
        began = time.monotonic()
        while time.monotonic() - began < LONG:
            product = product @ torch.full((1000, 1000), 1e-3)
        return x + 0 * product.sum()


def loop(comm: Any, what: str, wraps: bool = True) -> None:
    """Train for three steps, in the second of which ranks may take long or call alone."""
    torch.manual_seed(0)
    slow = Slow()
    net = nn.Sequential(nn.Linear(8, 8), slow, nn.Linear(8, 1))
    model = DistributedDataParallel(net) if wraps else net
    for step in range(3):
        slow.how = what if step == comm.rank == 1 else ""
        if step == 1:
            BEFORE.get(what, lambda _: None)(comm)
        loss = model(torch.ones(4, 8)).mean()
        dm.mean(loss.detach(), weight=4)
        if what == "calls alone" and comm.rank == step == 1:
            dm.barrier(name="which rank 1 alone calls")  # distlint: ignore[DL101] what this is about
        loss.backward()


def loops(comm: Any) -> bool:
    """Train once for each way to take one's time."""
    for what in BEFORE:
        loop(comm, what, wraps=False)
    for what in ("computes in backward", "sleeps in backward"):
        loop(comm, what)
        loop(comm, what, wraps=False)
    return True


def _wait_for_data(comm: Any) -> None:
    if comm.rank == 1:
        time.sleep(LONG)


def _send_between_two(comm: Any) -> None:
    """Messages between ranks 1 and 2, which gloo counts like collectives: rank 0 has none."""
    for _ in range(5):
        if comm.rank == 1:
            dist.send(torch.ones(1), 2)
        elif comm.rank == 2:
            dist.recv(torch.ones(1), 1)
    _wait_for_data(comm)


def _receive_late(comm: Any) -> None:
    """Rank 1 waits for a message of rank 2, which takes its time."""
    if comm.rank == 2:
        time.sleep(LONG)
        dist.send(torch.ones(1), 1)
    elif comm.rank == 1:
        dist.recv(torch.ones(1), 2)


BEFORE: dict[str, Callable[[Any], None]] = {
    "waits for data": _wait_for_data,
    "sends": _send_between_two,
    "receives": _receive_late,
}


def test_a_rank_that_calls_us_where_others_are_in_their_backward_pass() -> None:
    """And not at the deadline; with the line of the rank that has gone on."""
    error = outcomes(2, loop, "calls alone", backend="gloo", limit=60)[1].error
    assert isinstance(error, DivergedError), error
    assert str(error).startswith("rank 0 waits in a collective of torch.distributed, and this rank in another\n")
    assert "is in a backward pass or DistributedDataParallel  tests/guard/test_processes.py:" in str(error)


def test_a_rank_that_only_takes_its_time_is_not_blamed() -> None:
    """Whatever it does meanwhile, in its backward pass and elsewhere, for longer than one that is stuck is watched."""
    assert all(run(3, loops, backend="gloo", limit=100))
