"""Two machines, network namespaces of one, and the cable between them, which is cut; their ranks run this module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import distmetrics as dm
from tests.machines import torchrun, two_machines

pytestmark = [pytest.mark.gloo, pytest.mark.long, pytest.mark.timeout(240)]


def until_it_is_cut(folder: Path) -> None:
    """Sum until the link is cut; tell in a file how it ended."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dm.barrier()
    (folder / f"ready-{rank}").touch()
    told = {"kind": "", "text": "", "wrong": 0}
    try:
        for step in count():
            total = dm.all_reduce(torch.full((20_000,), float(rank + step)))
            told["wrong"] += int(not torch.equal(total, torch.full((20_000,), 2.0 * step + 1)))
            time.sleep(0.01)
    except dm.DistmetricsError as error:
        told |= {"kind": type(error).__name__, "text": str(error)}
    (folder / f"ended-{rank}.json").write_text(json.dumps(told))


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


if __name__ == "__main__":
    until_it_is_cut(Path(sys.argv[1]))
    os._exit(0)  # the connections are no good any more
