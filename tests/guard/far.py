"""One rank of a job on two machines: over a cable that is cut, or over one of another speed in each world."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import distmetrics as dm
from tests.machines import ADDRESSES

CALLS = 3
SPEEDS = (0.5, 50.0)  # Mbit/s
SECONDS = (0.05, 4.0)  # that a call's data takes on the cable


def wrong(size: int, number: int, rank: int) -> int:
    """Sum once; return whether the sum is wrong."""
    total = dm.all_reduce(torch.full((size,), float(rank + number)))
    return int(not torch.equal(total, torch.full((size,), 2.0 * number + 1)))


def until_it_is_cut(folder: Path) -> None:
    """Sum until the link is cut; tell in a file how it ended."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dm.barrier()
    (folder / f"ready-{rank}").touch()
    told = {"kind": "", "text": "", "wrong": 0}
    try:
        for step in count():
            told["wrong"] += wrong(20_000, step, rank)
            time.sleep(0.01)
    except dm.DistmetricsError as error:
        told |= {"kind": type(error).__name__, "text": str(error)}
    (folder / f"ended-{rank}.json").write_text(json.dumps(told))


def world(number: int, choice: random.Random, store: dist.Store, rank: int) -> dict[str, Any]:
    """Sum a few times over one cable; return how it ended."""
    megabits = SPEEDS[0] * (SPEEDS[1] / SPEEDS[0]) ** choice.random()
    limit = ["rate", f"{megabits * 1000:.0f}kbit", "burst", "16kb", "latency", "400ms"]
    device = os.environ["GLOO_SOCKET_IFNAME"]
    subprocess.run(["tc", "qdisc", "replace", "dev", device, "root", "tbf", *limit], check=True)
    own = dist.PrefixStore(f"world {number}", store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=2, timeout=timedelta(minutes=2))
    told = {"error": "", "wrong": 0}
    try:
        for _ in range(CALLS):
            seconds = SECONDS[0] * (SECONDS[1] / SECONDS[0]) ** choice.random()
            told["wrong"] += wrong(int(seconds * megabits * 1e6 / 32), number, rank)
    except dm.DistmetricsError as error:
        told["error"] = str(error)
    else:
        dist.destroy_process_group()
    return told


def many_worlds(folder: Path, worlds: int, seed: int) -> None:
    """Tell in a file how each world ended; the first that ends in an error is the last."""
    rank = int(os.environ["RANK"])
    store = dist.TCPStore(ADDRESSES[0], 29500, is_master=rank == 0, timeout=timedelta(minutes=2))
    choice = random.Random(seed)  # the same on both
    told: list[dict[str, Any]] = []
    while len(told) < worlds and not (told and told[-1]["error"]):
        told.append(world(len(told), choice, store, rank))
    (folder / f"{seed}-{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    (many_worlds if sys.argv[2:] else until_it_is_cut)(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    os._exit(0)  # the connections may be no good any more
