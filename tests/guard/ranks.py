"""What the ranks of the guard's tests do; processes import it by name."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
import torch.distributed as dist

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


def watched(comm: Any) -> list[Any]:
    """Collectives of torch's own inside ``guard.watch()``: uneven ones, objects, and those that torch collects."""
    size, x, y = comm.world_size, torch.ones(1), torch.ones(1)
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
    return [objects, exchanged.tolist(), float(x), float(y), direct.tolist()]


def watched_and_alone(comm: Any) -> None:
    """The wait of a watched collective is watched as well."""
    with guard.watch():
        if comm.rank:
            raise ValueError("a bad batch")
        dist.all_reduce(ONE.clone())


def watched_in_threads(comm: Any) -> bool:
    """Blocks of two threads that end in the order in which they began."""
    before, second_began, first_ended = dist.all_reduce, threading.Event(), threading.Event()

    def first() -> None:
        with guard.watch():
            second_began.wait(10)
        first_ended.set()

    thread = threading.Thread(target=first)
    thread.start()
    with guard.watch():
        second_began.set()
        first_ended.wait(10)
    thread.join()
    return dist.all_reduce is before
