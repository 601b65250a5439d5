"""What the ranks of the guard's tests do; processes import it by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import distmetrics as dm
from distmetrics import guard
from distmetrics.guard.store import GuardStore

ONE = torch.ones(3)


def one_is_busy(comm: Any) -> None:
    """Two sums, before the second of which rank 1 does something else."""
    for step in range(2):
        if step == comm.rank == 1:
            time.sleep(60)
        dm.all_reduce(ONE, name=f"sum {step}")


def one_raises_beside_a_busy_one(comm: Any) -> None:
    """Raise on rank 1, while rank 2 is busy for longer than who started it waits."""
    dm.barrier()
    if comm.rank == 1:
        raise ValueError("a bad batch")
    if comm.rank == 2:
        time.sleep(60)


def threads(comm: Any) -> tuple[list[str], set[str]]:
    """Return the guard's threads on this rank, and those that used its store while rank 0 waited."""
    used: set[str] = set()
    original = GuardStore.__getattribute__

    def noting(store: GuardStore, name: str) -> Any:
        if name == "store":
            used.add(threading.current_thread().name)
        return original(store, name)

    GuardStore.__getattribute__ = noting  # type: ignore[method-assign]
    if comm.rank:
        time.sleep(1)
    dm.barrier()
    here = [thread.name for thread in threading.enumerate()]
    return [name for name in here if name.startswith("distmetrics")], used


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
        if comm.rank:
            raise ValueError("a bad batch")
        dist.all_reduce(ONE.clone())


# --- a training loop of DistributedDataParallel ---------------------------------------------------------------------

STEPS, FAULTY = 4, 2


def loop(comm: Any, what: str, wraps: bool = True) -> float:
    """Train; return the seconds since the faulty step began, in which rank 1 may take long or call alone."""
    torch.manual_seed(0)
    slow = Slow(what, comm.rank)
    net = nn.Sequential(nn.Linear(8, 8), slow, nn.Linear(8, 1))
    model = DistributedDataParallel(net) if wraps else net
    began = time.monotonic()
    for step in range(STEPS):
        slow.armed = step == FAULTY
        if slow.armed:
            began = time.monotonic()
            BEFORE.get(what, lambda _: None)(comm)
        loss = model(torch.ones(4, 8)).mean()
        dm.mean(loss.detach(), weight=4)
        if what == "calls alone" and comm.rank == 1 and slow.armed:
            dm.barrier(name="which rank 1 alone calls")  # distlint: ignore[DL101] what this is about
        loss.backward()
    return time.monotonic() - began


def loops(comm: Any, wraps: bool) -> list[float]:
    """Train once for each way to take one's time, and return how long the longest step was."""
    ways = ["computes in backward", "sleeps in backward", *BEFORE]
    return [comm.all_reduce(torch.tensor(loop(comm, what, wraps)), "max").item() for what in ways]


class Slow(nn.Module):
    """Passes its input on; its backward pass takes long on rank 1, in one of several ways."""

    def __init__(self, what: str, rank: int) -> None:
        super().__init__()
        self.how = what if rank == 1 else ""
        self.armed = False

    def forward(self, x: Tensor) -> Tensor:
        if self.armed and self.how == "computes in backward":
            return _heavy(x)
        if self.armed and self.how == "sleeps in backward":
            x.register_hook(lambda gradient: time.sleep(1.5))
        return x


def _heavy(x: Tensor) -> Tensor:
    """Return x; its backward pass takes seconds in C code, which no frame of Python shows."""
    product = x.sum() * torch.ones(1000, 1000)
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        product = product @ torch.full((1000, 1000), 1e-3)
    return x + 0 * product.sum()


def _wait_for_data(comm: Any) -> None:
    if comm.rank == 1:
        time.sleep(1.5)


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
        time.sleep(1.5)
        dist.send(torch.ones(1), 1)
    elif comm.rank == 1:
        dist.recv(torch.ones(1), 2)


BEFORE: dict[str, Callable[[Any], None]] = {
    "waits for data": _wait_for_data,
    "sends": _send_between_two,
    "receives": _receive_late,
}
