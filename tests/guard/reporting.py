"""One of two ranks of a job that ends badly, and must leave a report: ``reporting.py WHAT``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import distmetrics as dm

ONE = torch.ones(2)


def caught(rank: int) -> None:
    """Catch the error, and end without it."""
    try:
        dm.all_gather(torch.ones(2 + rank))
    except dm.MismatchError:
        sys.exit(1)


def exits(rank: int) -> None:
    """End one rank by an exit code of failure, while the other waits for it."""
    if rank == 1:
        sys.exit(3)
    dm.all_reduce(ONE)  # distlint: ignore[DL101] what this is about


def killed(rank: int) -> None:
    """Be killed on one rank, while the other waits in C code of torch's, which nothing ends."""
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(ONE)


def terminated(rank: int) -> None:
    """Be ended by SIGTERM, in the midst of code of the user's."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def terminated_in_torch(rank: int) -> None:
    """Likewise in C code of torch's, which nothing ends."""
    if rank == 0:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        dist.recv(ONE)
    time.sleep(1)


def own_handler(rank: int) -> None:
    """Have a handler of the user's for SIGTERM, which decides what becomes of the process."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)


def say(*_: object) -> None:
    """Handle a signal as the user does."""
    print("the user's handler", flush=True)


def forked(rank: int) -> None:
    """Let a forked child be ended by SIGTERM, which says nothing of the rank."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(1)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    print(f"the child ended with {os.waitstatus_to_exitcode(status)}", flush=True)
    time.sleep(0.5)


if __name__ == "__main__":
    what = sys.argv[1]
    if what == "own_handler":
        signal.signal(signal.SIGTERM, say)
    dist.init_process_group("gloo")
    dm.barrier()
    ways = (caught, exits, killed, terminated, terminated_in_torch, own_handler, forked)
    {each.__name__: each for each in ways}[what](dist.get_rank())
    print("done", flush=True)
