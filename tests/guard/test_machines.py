"""Two machines, network namespaces of one, and the cable between them: cut, and slow."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.machines import torchrun, two_machines

pytestmark = [pytest.mark.gloo, pytest.mark.long, pytest.mark.timeout(240)]


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
        torchrun(names, "tests.guard.far", str(tmp_path), ranks=1)
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
            torchrun(names, "tests.guard.far", str(tmp_path), str(WORLDS), str(seed), ranks=1, timeout=800)

    with ThreadPoolExecutor(CABLES) as pool:
        for done in [pool.submit(over_one_cable, seed) for seed in range(CABLES)]:
            done.result()
    told = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert [len(worlds) for worlds in told] == [WORLDS] * CABLES * 2
    assert {(world["error"], world["wrong"]) for worlds in told for world in worlds} == {("", 0)}
