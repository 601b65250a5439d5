"""What the guard costs where nothing is wrong: in a sync, and in a training step.

On and off take turns in the same processes, so that a drift of the machine meets both.

    python -m benchmarks.guard            # table, and JSON in benchmarks/results
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common import arguments, bind_to_core, spans_in_turns, versions, write_json
from benchmarks.sync_cases import CASES
from distmetrics import GroupCommunicator, all_reduce, synced
from distmetrics.comm.process_group import Watcher
from distmetrics.guard.watchdog import Watchdog
from distmetrics.testing import run

BLOCK = 25
RANKS = 2


def on_and_off(comm: GroupCommunicator, act: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Return the median seconds of an act with the guard on, and off."""
    watchdog = comm.watcher
    assert isinstance(watchdog, Watchdog)

    def under(watcher: Watcher) -> Callable[[], Any]:
        def watched() -> None:
            comm.watcher = watcher
            act()

        return watched

    ways = {"on": under(watchdog), "off": under(Watcher())}
    spans = spans_in_turns(ways, repeats, block=BLOCK, meet=dist.barrier)
    comm.watcher = watchdog
    return {way: statistics.median(end - start for start, end in spans[way]) for way in ways}


def measure(comm: GroupCommunicator, repeats: int) -> dict[str, dict[str, float]]:
    """Run on every rank."""
    bind_to_core(comm.rank)
    found = {}
    for name in ("counts", "counts, groups"):
        metrics = CASES[name].make(comm.rank, comm.world_size)

        def sync(metrics: Any = metrics) -> None:
            with synced(metrics, comm=comm):
                pass

        found[f"sync of 20 metrics ({name})"] = on_and_off(comm, sync, repeats)
    found["training step, its loss reduced"] = on_and_off(comm, training_step(), repeats)
    return found


def training_step() -> Callable[[], None]:
    """Return a step of DDP of a few milliseconds, whose loss is reduced by a collective of ours."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    module = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    x, y = torch.randn(128, 256), torch.randint(10, (128,))

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        all_reduce(loss.detach(), name="loss")  # distlint: ignore[DL212] only its time counts

    return step


def main() -> None:
    """Measure, print and write."""
    args = arguments(__doc__, repeats=(1000, 25))
    ranks = run(RANKS, measure, args.repeats, backend="gloo")
    rows = {}
    for name in ranks[0]:
        on, off = (max(found[name][way] for found in ranks) for way in ("on", "off"))
        rows[name] = {"on": on, "off": off, "ratio": on / off}
        print(f"{name:38} on {1e6 * on:8.1f} µs  off {1e6 * off:8.1f} µs  ratio {on / off:.3f}")
    if args.is_whole:
        known = {"machine": platform.platform(), **versions(), "repeats": args.repeats}
        write_json("guard.json", {**known, "rows": rows})


if __name__ == "__main__":
    main()
