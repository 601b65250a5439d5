"""What the guard costs where nothing is wrong: in a sync, in a training step, and at rest.

On and off take turns in the same processes, in blocks whose first repeat is left out, so that a
drift of the machine meets both. Beside it: what TORCH_DISTRIBUTED_DEBUG=DETAIL makes of a small
all_reduce, which is the check that torch itself offers.

    python -m benchmarks.guard            # table, and JSON in benchmarks/results
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common import bind_to_core, garbage_kept, parser, seconds_of, versions, write_json
from benchmarks.sync_cases import CASES
from distmetrics import GroupCommunicator, all_reduce, synced
from distmetrics.comm.process_group import Watcher
from distmetrics.comm.verdict import settle
from distmetrics.guard.watchdog import Watchdog
from distmetrics.launch.spawn import launch

BLOCK = 25
RANKS = 2
IDLE = 5.0  # seconds of doing nothing


def on_and_off(comm: GroupCommunicator, act: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Return the median seconds of an act with the guard on, and off."""
    watchdog = comm.watcher
    assert isinstance(watchdog, Watchdog)
    found: dict[str, list[float]] = {"on": [], "off": []}
    for turn in range(-(-repeats // BLOCK) * 2):
        name = "on" if turn % 4 in (0, 3) else "off"  # on off off on: a drift is no difference
        comm.watcher = watchdog if name == "on" else Watcher()
        act()
        with garbage_kept():
            for _ in range(BLOCK):
                dist.barrier()
                found[name].append(seconds_of(act))
    comm.watcher = watchdog
    return {name: statistics.median(times) for name, times in found.items()}


def measure(comm: GroupCommunicator, repeats: int) -> dict[str, dict[str, float]]:
    """Run on every rank."""
    bind_to_core(comm.rank)
    found: dict[str, dict[str, float]] = {}
    for name in ("counts", "counts, groups"):
        metrics = CASES[name].make(comm.rank, comm.world_size)

        def sync(metrics: Any = metrics) -> None:
            with synced(metrics, comm=comm):
                pass

        found[f"sync of 20 metrics ({name})"] = on_and_off(comm, sync, repeats)
    found["training step, its loss reduced"] = on_and_off(comm, training_step(), repeats)
    before = time.process_time()
    time.sleep(IDLE)  # the share of a core that the process takes while its main thread sleeps
    found["idle"] = {"on": (time.process_time() - before) / IDLE}
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


def small_all_reduce(comm: GroupCommunicator, repeats: int) -> float:
    """Return the median seconds of torch's all_reduce of eight bytes."""
    x = torch.ones(2)
    return statistics.median(seconds_of(lambda: dist.all_reduce(x)) for _ in range(repeats))


def detail(repeats: int) -> dict[str, float]:
    """Return the small all_reduce's time with DETAIL on and off, in processes of their own."""
    found = {}
    for name, level in (("off", "OFF"), ("on", "DETAIL")):
        variables = [{"TORCH_DISTRIBUTED_DEBUG": level}] * RANKS
        ended = launch(small_all_reduce, RANKS, repeats, start_method="spawn", variables=variables)
        found[name] = max(settle(ended))
    return found


def main() -> None:
    """Measure, print and write."""
    ask = parser(__doc__)
    ask.add_argument("--repeats", type=int, default=1000)
    ask.add_argument("--dry", action="store_true", help="write nothing")
    args = ask.parse_args()
    ranks = settle(launch(measure, RANKS, args.repeats))
    rows = {}
    for name in ranks[0]:
        on, off = (max(found[name].get(way, 0.0) for found in ranks) for way in ("on", "off"))
        rows[name] = {"on": on, "off": off, "ratio": on / off if off else None}
    made = detail(args.repeats)
    rows["torch's DETAIL, all_reduce of 8 B"] = {**made, "ratio": made["on"] / made["off"]}
    for name, row in rows.items():
        on, off, ratio = (row[way] or 0.0 for way in ("on", "off", "ratio"))
        times = f"on {1e6 * on:8.1f} µs  off {1e6 * off:8.1f} µs  ratio {ratio:.3f}"
        print(f"{name:45} {times if ratio else f'{100 * on:.2f} % of a core'}")
    if not args.dry:
        known = {"machine": platform.platform(), **versions(), "repeats": args.repeats}
        write_json("guard.json", {**known, "rows": rows})


if __name__ == "__main__":
    main()
