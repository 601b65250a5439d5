"""Two machines, network namespaces of one, and the cable between them, cut or slow; their ranks run this module."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import distmetrics as dm
from tests.machines import ADDRESSES, torchrun, two_machines

pytestmark = [pytest.mark.gloo, pytest.mark.long, pytest.mark.timeout(240)]
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


def change(name: str, what: str) -> None:
    """Change one end of the cable, which has its machine's name."""
    tool = "tc" if what.startswith("qdisc") else "ip"
    subprocess.run([tool, "-n", name, *what.replace("{1}", name).split()], check=True)


def wait_for(folder: Path, *names: str) -> None:
    until = time.monotonic() + 100
    while not all((folder / name).exists() for name in names) and time.monotonic() < until:
        time.sleep(0.05)


def ended(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"ended-{rank}.json").read_text()) for rank in range(2)]


# What happens to the cable: both directions are lost, or what the second machine sends: no packet fits in 10 bytes.
CUTS = {
    "both ways": ("link set {1} down", "link set {1} up"),
    "one way": (
        "qdisc add dev {1} root tbf rate 1kbit burst 10b limit 10b",
        "qdisc del dev {1} root",
    ),
}


@pytest.mark.parametrize("way", CUTS)
def test_a_cable_that_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The machine without the store can ask nobody; the one with it hears nothing from the other until the deadline."""
    monkeypatch.setenv("DISTMETRICS_TIMEOUT", "6")
    with two_machines() as names:

        def cut_and_heal() -> None:
            wait_for(tmp_path, "ready-0", "ready-1")
            time.sleep(0.5)
            change(names[1], CUTS[way][0])
            wait_for(tmp_path, "ended-0.json", "ended-1.json")
            change(names[1], CUTS[way][1])  # torchrun needs it

        scissors = threading.Thread(target=cut_and_heal)
        scissors.start()
        torchrun(names, "tests.guard.test_machines", str(tmp_path), ranks=1)
        scissors.join()
    near, far = ended(tmp_path)
    assert far["kind"] == "PeerLostError", far
    assert "the job's key-value store does not answer" in far["text"]
    assert near["kind"] in ("DivergedError", "PeerLostError"), near
    assert "rank 1" in near["text"]
    assert near["wrong"] == far["wrong"] == 0


CABLES, WORLDS = 4, 50


@pytest.mark.timeout(900)
def test_slow_cables_of_every_speed_are_no_fault(tmp_path: Path) -> None:
    """200 worlds, each over a cable of 0.5 to 50 Mbit/s that every call fills for up to 4 s."""

    def over_one_cable(seed: int) -> None:
        with two_machines() as names:
            torchrun(names, "tests.guard.test_machines", str(tmp_path), str(WORLDS), str(seed), ranks=1, timeout=800)

    with ThreadPoolExecutor(CABLES) as pool:
        for done in [pool.submit(over_one_cable, seed) for seed in range(CABLES)]:
            done.result()
    told = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert [len(worlds) for worlds in told] == [WORLDS] * CABLES * 2
    assert {(world["error"], world["wrong"]) for worlds in told for world in worlds} == {("", 0)}


if __name__ == "__main__":
    (many_worlds if sys.argv[2:] else until_it_is_cut)(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    os._exit(0)  # the connections may be no good any more
