"""A script of the user's own, which calls init_process_group, as one of its ranks runs it: ``script.py WHAT [BAD]``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import distmetrics as dm
from distmetrics import guard

ONE = torch.ones(2)


def trains(rank: int, what: str, bad: int) -> None:
    """Some sums; a rank does something else before the third."""
    time.sleep(1)  # of training
    for step in range(4):
        if step == 2 and rank == bad:
            match what:
                case "returns":
                    sys.exit(0)
                case "is killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "is busy":
                    time.sleep(90)
        if what == "is busy" and step == rank == 2:
            time.sleep(1)  # and reaches its deadline later
        dm.all_reduce(ONE)  # distlint: ignore[DL101] what the guard must stop


def is_refused(rank: int) -> None:
    """The backend has no such call: torch's own words, and the group is whole; then one rank alone ends by it."""
    with guard.watch():
        try:
            dist.all_reduce(ONE.to_sparse(), op=dist.ReduceOp.MAX)
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}")
        dist.barrier()
        dist.all_reduce(ONE.to_sparse() if rank else ONE, op=dist.ReduceOp.MAX)


def raises_alone(rank: int) -> None:
    if rank == 1:
        raise ValueError("a bad batch")
    dm.barrier()  # distlint: ignore[DL101] what this is about


def caught(rank: int) -> None:
    """Catch an error that both ranks raise, and end without it."""
    try:
        dm.all_gather(torch.ones(2 + rank))
    except dm.MismatchError:
        sys.exit(1)


def terminated(rank: int) -> None:
    """Be ended by SIGTERM, in the midst of code of the user's, who may have a handler for it."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)


def terminated_in_torch(rank: int) -> None:
    """Likewise in C code of torch's, which nothing ends."""
    if rank == 0:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        dist.recv(ONE)
    time.sleep(1)


def forks(rank: int) -> None:
    """Forked children end, one by itself and one by SIGTERM, which says nothing of the rank; it is slow then."""
    first = os.fork()
    if first == 0:
        sys.exit(0)
    second = os.fork()
    if second == 0:
        time.sleep(60)
        os._exit(1)
    os.kill(second, signal.SIGTERM)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in (first, second)]
    print(f"the children ended with {codes}", flush=True)
    time.sleep(1.5 * rank)  # so that the other looks who has left
    dm.all_reduce(ONE)


def main(what: str, bad: int = -1) -> None:
    """Print how it ends."""
    if what == "own_handler":
        signal.signal(signal.SIGTERM, lambda *_: print("the user's handler", flush=True))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if what == "is gone before the first call":
        os._exit(0) if rank == bad else time.sleep(1)
    try:
        dm.barrier()
        if bad >= 0:
            trains(rank, what, bad)
        else:
            globals()["terminated" if what == "own_handler" else what](rank)
    except dm.DistmetricsError as error:
        print(f"rank {rank} raised {type(error).__name__}: {error}", flush=True)
        raise SystemExit(1) from None
    if what == "nothing":
        dist.destroy_process_group()
    print(f"rank {rank} is done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
