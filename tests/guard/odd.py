"""Odd things that scripts of users do, as one of two ranks: ``odd.py WHAT``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import distmetrics as dm
from distmetrics import guard

ONE = torch.ones(2)


def forks(rank: int) -> None:
    """A forked child ends; the rank goes on, and is slow."""
    dm.all_reduce(ONE)
    if rank == 1:
        child = os.fork()
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        time.sleep(1.5)  # so that the other looks who has left
    dm.all_reduce(ONE)  # distlint: ignore[DL101] what the guard must stop


def is_refused(rank: int) -> None:
    """The backend has no such call: torch's own words, and the group is whole."""
    with guard.watch():
        try:
            dist.all_reduce(ONE.to_sparse(), op=dist.ReduceOp.MAX)
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}")
        dist.barrier()


def is_refused_alone(rank: int) -> None:
    """One rank sends what the backend refuses, and ends by it: the other is told at once."""
    x = ONE.to_sparse() if rank else ONE
    with guard.watch():
        try:
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
        except dm.PeerLostError as error:
            print(f"{type(error).__name__}: {error}")


def raises_alone(rank: int) -> None:
    """A verdict, where reports can't be written."""
    dm.barrier()
    if rank == 1:
        raise ValueError("a bad batch")
    try:
        dm.barrier()  # distlint: ignore[DL101] what this is about
    except dm.PeerLostError as error:
        print(f"{type(error).__name__}: {error}")


WHAT: dict[str, Callable[[int], None]] = {
    "forks": forks,
    "is refused": is_refused,
    "is refused alone": is_refused_alone,
    "raises alone": raises_alone,
}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    WHAT[sys.argv[1]](dist.get_rank())
    print("done", flush=True)
