"""What the guard adds to the first sync of a job, on one machine, at rest and beside a full load.

Each start is a job of its own: its ranks fork from a process that has imported everything, join a
gloo group whose store is rank 0's, meet in a barrier, and sync for the first time. The slowest rank
counts. Then one rank is late, so that the others' guards ask each other; a verdict would be a false
one. Load: one busy process a core.

    python -m benchmarks.guard_start        # 50 starts of each, an hour; JSON in benchmarks/results
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import distmetrics as dm
from benchmarks.common import arguments, versions, write_json
from distmetrics import DistmetricsError, GroupCommunicator, guard
from distmetrics.guard.watchdog import Watchdog

WORLDS = (2, 4, 8, 16, 24)
LATE = 0.5  # seconds by which the last rank is late in the second sync
CONNECTED = 60.0  # seconds in which each rank's guard must have its connection
LIMIT = 120.0  # seconds in which a job must have ended


class Told(NamedTuple):
    """What a rank sends home: seconds, what it raised, and whether it has a guard."""

    first: float
    error: str
    has_guard: bool


def one_rank(rank: int, world_size: int, port: int, mode: Any, home: Connection) -> None:
    """Run in a process of its own: sync twice, and say how that went."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    url = f"tcp://127.0.0.1:{port}"
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
    home.send(Told(seconds, error, not error and has_guard()))
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
        context.Process(target=one_rank, args=(rank, world_size, port, mode, theirs))
        for rank, (_, theirs) in enumerate(pipes)
    ]
    with running(ranks):
        until = time.monotonic() + LIMIT
        for process in ranks:
            process.join(max(0.0, until - time.monotonic()))
        ended = [not process.is_alive() for process in ranks]
    homes = zip(pipes, ended, strict=True)
    return [ours.recv() if well and ours.poll() else None for (ours, _), well in homes]


@contextmanager
def running(processes: list[Any]) -> Iterator[None]:
    """Start processes; kill those that are left when the block is over."""
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _busy() -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # also where that is killed
        pass


def measure(world_size: int, mode: str, starts: int, *, loaded: bool) -> dict[str, Any]:
    """Start a world several times: the first sync's seconds, and what was wrong."""
    busy = range((os.cpu_count() or 1) if loaded else 0)
    with running([multiprocessing.Process(target=_busy, daemon=True) for _ in busy]):
        jobs = [start(world_size, mode) for _ in range(starts)]
    told = [rank for job in jobs for rank in job if rank is not None]
    errors = [rank.error for rank in told if rank.error]
    slowest = [max((rank.first for rank in job if rank is not None), default=LIMIT) for job in jobs]
    without = sum(not rank.has_guard for rank in told if not rank.error) if mode == "on" else 0
    return {
        "world_size": world_size,
        "guard": mode,
        "load": loaded,
        "starts": starts,
        "median": statistics.median(slowest),
        "longest": max(slowest),
        "false_verdicts": len(errors),
        "silent_ranks": world_size * starts - len(told),
        "without_guard": without,
        "errors": sorted({*errors}),
    }


def main() -> None:
    """Measure, print, write; exit code 1 for a false verdict or a missing guard."""
    args = arguments(__doc__, starts=(50, 2), worlds=(len(WORLDS), 1))
    rows = []
    halves = ((False, args.starts - args.starts // 2), (True, args.starts // 2))
    for world_size in WORLDS[: args.worlds]:
        for loaded, count in halves:
            for mode in ("on", "off") if count else ():
                row = measure(world_size, mode, count, loaded=loaded)
                rows.append(row)
                print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if args.is_whole:
        known = {"machine": platform.platform(), "cores": os.cpu_count(), **versions()}
        write_json("guard_start.json", {**known, "rows": rows})
    bad = ("false_verdicts", "silent_ranks", "without_guard")
    raise SystemExit(any(row[key] for row in rows for key in bad))


if __name__ == "__main__":
    main()
