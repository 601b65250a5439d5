"""What the guard adds to the first sync of a job, on one machine, at rest and beside a full load.

Each start is a job of its own: its ranks fork from a process that has imported everything, join a
gloo group whose store is rank 0's, meet in a barrier, and sync for the first time. The slowest rank
counts; how long torch takes to join is told beside it. Then one rank is late, so that the others'
guards ask each other; a verdict would be a false one. Load: one busy process a core.

    python -m benchmarks.guard_start                          # 50 starts of each, about an hour
    python -m benchmarks.guard_start --starts 6 --worlds 2 16
    python -m benchmarks.guard_start --out benchmarks/results/guard_start.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import distmetrics as dm
from distmetrics import DistmetricsError, GroupCommunicator, guard
from distmetrics.guard.watchdog import Watchdog

WORLDS = (2, 4, 8, 16, 24)
LATE = 0.5  # seconds by which the last rank is late in the second sync
CONNECTED = 60.0  # seconds in which each rank's guard must have its connection
LIMIT = 120.0  # seconds in which a job must have ended

# What a rank sends home: seconds of joining and of the first sync, what it raised, and whether it
# has a guard.
Told = tuple[float, float, str, bool]


def one_rank(rank: int, world_size: int, port: int, mode: Any, home: Connection) -> None:
    """Run in a process of its own: sync twice, and say how that went."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    url = f"tcp://127.0.0.1:{port}"
    began = time.perf_counter()
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=world_size)
    dist.barrier()
    seconds, error = 0.0, ""
    begun = time.perf_counter()
    try:
        with guard.use_settings(mode=mode):
            dm.all_reduce(torch.ones(2), name="first")
        seconds = time.perf_counter() - begun
        if rank == world_size - 1:
            time.sleep(LATE)
        dm.all_reduce(torch.ones(2), name="second")
    except DistmetricsError as raised:
        error = str(raised).partition("\n")[0]
    home.send((begun - began, seconds, error, not error and has_guard()))
    dist.destroy_process_group()


def has_guard() -> bool:
    """True once this rank's guard has its connection, if that is in time."""
    comm = GroupCommunicator.of(dist.group.WORLD)
    return isinstance(comm.watcher, Watchdog) and comm.watcher.connected.wait(CONNECTED)


def start(world_size: int, mode: str) -> list[Told | None]:
    """Run one job; return what each rank told, None for one that told nothing or did not end."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["distmetrics.launch.joining", "distmetrics.guard"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    ranks = [
        context.Process(target=one_rank, args=(rank, world_size, port, mode, pipes[rank][1]))
        for rank in range(world_size)
    ]
    try:
        for process in ranks:
            process.start()
        until = time.monotonic() + LIMIT
        for process in ranks:
            process.join(max(0.0, until - time.monotonic()))
        ended = [not process.is_alive() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return [
        ours.recv() if well and ours.poll() else None
        for (ours, _), well in zip(pipes, ended, strict=True)
    ]


def _busy() -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # also where that is killed
        pass


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many cores busy inside the block."""
    started = [multiprocessing.Process(target=_busy, daemon=True) for _ in range(processes)]
    try:
        for process in started:
            process.start()
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


@dataclass
class Row:
    """So many starts of one world: the first sync's seconds, and what was wrong.

    ``joining``: the longest time until a world was complete, before the first sync.
    """

    world_size: int
    guard: str
    load: bool
    starts: int
    median: float
    longest: float
    joining: float
    false_verdicts: int
    silent_ranks: int
    without_guard: int
    errors: list[str]


def measure(world_size: int, mode: str, starts: int, *, loaded: bool) -> Row:
    """Start a world several times."""
    with load((os.cpu_count() or 1) if loaded else 0):
        jobs = [start(world_size, mode) for _ in range(starts)]
    told = [rank for job in jobs for rank in job if rank is not None]
    errors = [error for *_, error, _ in told if error]
    slowest = [max((rank[1] for rank in job if rank is not None), default=LIMIT) for job in jobs]
    return Row(
        world_size,
        mode,
        loaded,
        starts,
        statistics.median(slowest),
        max(slowest),
        max((rank[0] for rank in told), default=LIMIT),
        len(errors),
        world_size * starts - len(told),
        sum(not guarded for *_, error, guarded in told if not error) if mode == "on" else 0,
        sorted({*errors}),
    )


def series(worlds: Sequence[int], starts: int) -> Iterator[Row]:
    """Yield each measurement: half of the starts at rest, half beside a load; guard on and off."""
    for world_size in worlds:
        for loaded, count in ((False, starts - starts // 2), (True, starts // 2)):
            for mode in ("on", "off"):
                if count:
                    yield measure(world_size, mode, count, loaded=loaded)


def main() -> None:
    """Measure, print, and write where asked; exit code 1 for a false verdict or a missing guard."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, nargs="+", default=WORLDS)
    parser.add_argument("--starts", type=int, default=50, help="of each world, half under load")
    parser.add_argument("--out", type=Path, help="file of the results")
    args = parser.parse_args()
    rows = []
    for row in series(args.worlds, args.starts):
        rows.append(row)
        print(
            f"W={row.world_size:3} guard {row.guard:3} {'load' if row.load else 'rest'} "
            f"{row.starts:3} starts: median {row.median:6.3f} s, longest {row.longest:6.3f} s "
            f"(joining up to {row.joining:5.1f} s); "
            f"false verdicts {row.false_verdicts}, without guard {row.without_guard}, "
            f"silent {row.silent_ranks}  {'; '.join(row.errors)}",
            flush=True,
        )
    if args.out is not None:
        facts = {
            "machine": platform.platform(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
        }
        args.out.write_text(json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=1))
    raise SystemExit(any(row.false_verdicts + row.silent_ranks + row.without_guard for row in rows))


if __name__ == "__main__":
    main()
