"""What the ranks of the guard's tests do; processes import it by name."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import all_reduce as taken_by_name

import distmetrics as dm
from distmetrics import guard

ONE = torch.ones(3)


def fault(comm: Any, what: str, bad: int) -> list[float]:
    """Three sums, before the second of which a rank does something else."""
    found = []
    for step in range(3):
        if step == 1 and comm.rank == bad:
            DEEDS[what](comm)
        found.append(float(dm.all_reduce(ONE * (comm.rank + 1), name=f"sum {step}")[0]))
    return found


def listening(comm: Any, what: str, bad: int) -> tuple[list[float], list[str]]:
    """A fault, and what the guard says in the log meanwhile."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("distmetrics.guard").addHandler(handler)
    return fault(comm, what, bad), said


def _raises(comm: Any) -> None:
    raise ValueError("a bad batch")


def _skips(comm: Any) -> None:
    dm.barrier(name="which only one rank calls")


DEEDS: dict[str, Any] = {
    "nothing": lambda comm: None,
    "slow": lambda comm: time.sleep(1.5),
    "raise": _raises,
    "exit": lambda comm: os._exit(3),
    "kill": lambda comm: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda comm: os.kill(os.getpid(), signal.SIGSTOP),
    "busy": lambda comm: time.sleep(60),
    "extra": _skips,
    "foreign": lambda comm: dist.all_reduce(ONE),
    "direct": lambda comm: comm.all_gather(ONE),
}


def groups_in_another_order(comm: Any) -> None:
    """A deadlock that no header shows: each rank waits in a group of its own."""
    both = [*range(comm.world_size)]
    first, second = (dm.GroupCommunicator.of(dist.new_group(both)) for _ in range(2))
    for group in (first, second) if comm.rank else (second, first):
        dm.barrier(comm=group)


def lines_in_another_order(comm: Any) -> None:
    """Equal calls, from two lines, in another order: each pair agrees."""

    def first() -> Any:
        return dm.all_reduce(ONE)

    def second() -> Any:
        return dm.all_reduce(2 * ONE)

    for call in (first, second) if comm.rank else (second, first):
        call()


def lines_of_a_branch(comm: Any) -> float:
    """The same call on both ways of a branch, as often as you like: nothing is wrong with it."""
    total = 0.0
    for _ in range(5):
        if comm.rank:
            total += float(dm.all_reduce(ONE)[0])
        else:
            total += float(dm.all_reduce(ONE)[0])
    return total


def direct_calls_that_differ(comm: Any) -> None:
    """Bytes of equal number and another meaning: the transport takes them."""
    comm.all_reduce(torch.ones(4, dtype=torch.float32 if comm.rank else torch.int32), "sum")
    dm.barrier()


def broken_stays_broken(comm: Any) -> list[str]:
    """Each later call hears the same."""
    said = []
    for _ in range(3):
        try:
            if comm.rank:
                raise SystemExit
            dm.barrier()  # distlint: ignore[DL101] what these tests are about
        except dm.DistmetricsError as error:
            said.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return said


def left_scope(comm: Any) -> None:
    """A rank leaves the epoch by an error that it catches, and goes on."""
    try:
        with guard.guarded_epoch("train"):
            for step in range(3):
                if comm.rank and step == 2:
                    _raises(comm)
                dm.all_reduce(ONE)
    except ValueError:
        dm.barrier()  # distlint: ignore[DL106] likewise


def other_numbers_of_steps(comm: Any) -> None:
    """One rank has a batch more."""
    with guard.guarded_epoch("train"):
        for _ in range(3 + comm.rank):
            dm.all_reduce(ONE)  # distlint: ignore[DL104] what the guard must stop


def watched(comm: Any, what: str) -> Any:
    """torch's own collectives."""
    with guard.watch():
        return WATCHED[what](comm)


def _sum_or_max(comm: Any) -> None:
    dist.all_reduce(ONE.clone(), op=dist.ReduceOp.SUM if comm.rank else dist.ReduceOp.MAX)


def _sum_or_max_by_name(comm: Any) -> None:
    taken_by_name(ONE.clone(), op=dist.ReduceOp.SUM if comm.rank else dist.ReduceOp.MAX)


def _metrics_in_another_order(comm: Any) -> None:
    from torchmetrics.classification import BinaryAccuracy, BinaryF1Score

    metrics = [BinaryAccuracy(), BinaryF1Score()]
    for metric in metrics:
        metric.update(torch.tensor([0.0, 1.0]), torch.tensor([0, 1]))
    for metric in metrics if comm.rank else metrics[::-1]:
        metric.compute()


def _skipped(comm: Any) -> None:
    if comm.rank:
        dist.all_reduce(ONE.clone())  # distlint: ignore[DL101] likewise
    dist.barrier()


def _never_comes(comm: Any) -> None:
    if comm.rank:
        raise ValueError("a bad batch")
    dist.all_reduce(ONE.clone())  # distlint: ignore[DL101] likewise


def _everything(comm: Any) -> dict[str, Any]:
    x = torch.full((2,), float(comm.rank + 1))
    size = comm.world_size
    summed, sent = x.clone(), x.clone()
    dist.all_reduce(summed)
    dist.broadcast(sent, src=1)
    gathered = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(gathered, x)
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, comm.rank)
    work = dist.all_reduce(x.clone(), async_op=True)
    assert work is not None
    work.wait()
    uneven = torch.arange(size + comm.rank * size)
    exchanged = torch.empty(sum(1 + r for r in range(size)), dtype=uneven.dtype)
    dist.all_to_all_single(exchanged, uneven, [1 + r for r in range(size)], [1 + comm.rank] * size)
    dist.barrier()
    ours = dm.all_reduce(x)
    return {
        "summed": summed.tolist(),
        "sent": sent.tolist(),
        "gathered": [row.tolist() for row in gathered],
        "objects": objects,
        "ours": ours.tolist(),
        "direct": comm.all_reduce(x, "sum").tolist(),
    }


def _collected(comm: Any) -> list[float]:
    x, y = torch.ones(1), torch.ones(1)
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(y)
    return [float(x), float(y)]


WATCHED = {
    "collected": _collected,
    "sum or max": _sum_or_max,
    "sum or max by name": _sum_or_max_by_name,
    "metrics": _metrics_in_another_order,
    "skipped": _skipped,
    "never comes": _never_comes,
    "everything": _everything,
}


def put_back(comm: Any) -> list[bool]:
    """Also where the block raises."""
    before, by_name = {name: getattr(dist, name) for name in guard.WATCHED}, taken_by_name
    try:
        with guard.watch():
            replaced = all(getattr(dist, name) is not function for name, function in before.items())
            replaced = replaced and taken_by_name is dist.all_reduce
            _raises(comm)
    except ValueError:
        pass
    return [replaced, all(getattr(dist, n) is fn for n, fn in before.items()) and taken_by_name is by_name]


def threads(comm: Any) -> list[str]:
    """The guard's threads on this rank."""
    import threading

    dm.barrier()
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("distmetrics"))


def watched_in_threads(comm: Any) -> bool:
    """Blocks of two threads that end in the order in which they began."""
    import threading

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


def groups_in_threads(comm: Any) -> list[float]:
    """A thread for each of two groups; on each rank another one is slow."""
    import threading

    both = [*range(comm.world_size)]
    groups = [dm.GroupCommunicator.of(dist.new_group(both)) for _ in range(2)]
    found = [0.0, 0.0]

    def work(index: int) -> None:
        if index == comm.rank:
            time.sleep(2)
        found[index] = float(dm.all_reduce(ONE, comm=groups[index])[0])

    workers = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return found


def raises_beside_a_busy_one(comm: Any) -> None:
    """Raise on rank 1, while rank 2 is busy for longer than who started it waits."""
    dm.barrier()
    if comm.rank == 1:
        _raises(comm)
    if comm.rank == 2:
        time.sleep(60)


def threads_at_the_store(comm: Any) -> set[str]:
    """Return the names of the threads that used the guard's store while this rank waited."""
    import threading

    from distmetrics.guard.store import GuardStore

    names: set[str] = set()
    original = GuardStore.__getattribute__

    def noting(store: GuardStore, name: str) -> Any:
        names.add(threading.current_thread().name)
        return original(store, name)

    GuardStore.__getattribute__ = noting  # type: ignore[method-assign]
    if comm.rank:
        time.sleep(1)
    dm.barrier()
    return names
