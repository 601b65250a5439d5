"""A training script of the user's own, as one of its ranks runs it: ``script.py WHAT BAD``."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import distmetrics as dm


def main(what: str, bad: int) -> None:
    """Some sums; a rank does something else before the third."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    began = time.monotonic()
    try:
        if what == "is gone before the first call":
            os._exit(0) if rank == bad else time.sleep(1)
        dm.barrier()
        time.sleep(1)  # of training
        for step in range(4):
            if step == 2 and rank == bad:
                do(what)
            if what == "is busy" and step == 2 and rank == 2:
                time.sleep(1)  # and reaches its deadline later
            dm.all_reduce(torch.ones(2))  # distlint: ignore[DL101] what the guard must stop
    except dm.DistmetricsError as error:
        print(f"rank {rank} raised {type(error).__name__} after {time.monotonic() - began:.1f} s: {error}", flush=True)
        if what == "is busy":
            os._exit(1)  # and the store of rank 0 ends with it
        raise SystemExit(1) from None
    if what != "no goodbye":
        dist.destroy_process_group()
    print(f"rank {rank} is done", flush=True)


def do(what: str) -> None:
    """Be the rank at fault."""
    match what:
        case "returns":
            sys.exit(0)
        case "raises":
            raise ValueError("a bad batch")
        case "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "is busy":
            time.sleep(90)
        case "is stopped":
            os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
