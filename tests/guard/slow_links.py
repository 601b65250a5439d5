"""One rank of two machines over world after world, each with a cable of another speed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import distmetrics as dm
from tests.machines import ADDRESSES

CALLS = 3
SPEEDS = (0.5, 50.0)  # Mbit/s
SECONDS = (0.05, 4.0)  # that a call's data takes on the cable


def slow(megabits: float) -> None:
    """Limit what this machine sends."""
    limit = ["rate", f"{megabits * 1000:.0f}kbit", "burst", "16kb", "latency", "400ms"]
    device = os.environ["GLOO_SOCKET_IFNAME"]
    subprocess.run(["tc", "qdisc", "replace", "dev", device, "root", "tbf", *limit], check=True)


def world(number: int, choice: random.Random, store: dist.Store, rank: int) -> dict[str, object]:
    """Sum a few times over one cable; returns how long it took, and the error if there was one."""
    megabits = SPEEDS[0] * (SPEEDS[1] / SPEEDS[0]) ** choice.random()
    slow(megabits)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(f"world {number}", store), rank=rank, world_size=2, timeout=timedelta(minutes=2)
    )
    told: dict[str, object] = {"megabits": megabits, "error": "", "wrong": 0, "seconds": []}
    try:
        for _ in range(CALLS):
            seconds = SECONDS[0] * (SECONDS[1] / SECONDS[0]) ** choice.random()
            size, begun = int(seconds * megabits * 1e6 / 32), time.monotonic()
            total = dm.all_reduce(torch.full((size,), float(rank + number)))
            told["seconds"] += [time.monotonic() - begun]  # type: ignore[operator]
            told["wrong"] += int(not torch.equal(total, torch.full((size,), 2.0 * number + 1)))  # type: ignore[operator]
    except dm.DistmetricsError as error:
        told["error"] = str(error)
    else:
        dist.destroy_process_group()
    return told


def main(folder: Path, worlds: int, seed: int) -> None:
    """Tell in a file how each world ended; the first that ends in an error is the last."""
    rank = int(os.environ["RANK"])
    store = dist.TCPStore(ADDRESSES[0], 29500, is_master=rank == 0, timeout=timedelta(minutes=2))
    choice = random.Random(seed)  # the same on both
    told: list[dict[str, object]] = []
    while len(told) < worlds and not (told and told[-1]["error"]):
        told.append(world(len(told), choice, store, rank))
    (folder / f"{seed}-{rank}.json").write_text(json.dumps(told))
    os._exit(0)  # whether the last connections are any good is not the question


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
