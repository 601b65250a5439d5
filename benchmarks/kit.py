"""Sharded runs of a metric a second: in threads, in launched processes, in a pool of processes.

A run is what a test of a distributed metric is made of: every rank makes the metric, updates it
with its shard, syncs and computes. All ways run the same job on the same data, in turn, round after
round, and must get the same value.

- *threads*: a new world of three ranks for each run, threads of this process as the kit has them,
  bound to one core.
- *launch*: three new gloo processes for each run, ``run(3, …, backend="gloo")``.
- *pool*: gloo processes that are started once and get one task a run, as torchmetrics' own tests
  have them: a ``torch.multiprocessing.Pool`` with one process group for all tests (there of two
  processes, here of two and of three), and torchmetrics' own sync.

Processes may use all cores. Times are by the wall and by the CPU, of all threads and processes that
take part; the second says more on a machine that does other work.

    python -m benchmarks.kit                      # table, JSON in benchmarks/results/kit.json
    python -m benchmarks.kit --rounds 2 --no-save
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchmetrics.classification import BinaryF1Score

from distmetrics import Communicator, ThreadWorld, sync_and_compute
from distmetrics.testing import run
from distmetrics.testing.fake_torch_distributed import routed

RESULTS = Path(__file__).parent / "results"
RANKS, BATCHES, SAMPLES, GOAL = 3, 2, 4, 300
RUNS = {
    "threads": 400,
    "threads, own sync": 200,
    "launch": 2,
    "pool of 2": 200,
    "pool of 3": 200,
}  # of each round
TITLES = {
    "threads": "ThreadWorld, 3 ranks, one core",
    "threads, own sync": "the same, torchmetrics' own sync",
    "pool of 2": "pool of 2 gloo processes, as torchmetrics' tests",
    "pool of 3": "pool of 3 gloo processes",
    "launch": "3 gloo processes launched for each run",
}
Timing = tuple[float, float, float]  # wall and CPU seconds of all runs, and the value of the last


def shard(rank: int, world_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return what a rank is given; all ranks together have the same samples in every world."""
    every = torch.arange(RANKS * BATCHES * SAMPLES)
    mine = every[rank::world_size]
    return [(part % 7 / 7, (part % 3 > 0).long()) for part in torch.split(mine, SAMPLES)]


def filled(rank: int, world_size: int) -> BinaryF1Score:
    """Make the metric and give it the rank's shard."""
    metric = BinaryF1Score(validate_args=False)
    for preds, target in shard(rank, world_size):
        metric.update(preds, target)
    return metric


def ours(comm: Communicator) -> tuple[float, float]:
    """Run on each rank: the value, and the CPU time that its process has taken so far."""
    value = float(sync_and_compute(filled(comm.rank, comm.world_size), comm=comm))
    return value, time.process_time()


def own(comm: Communicator) -> tuple[float, float]:
    """Like :func:`ours`, with the metric's own sync."""
    return float(filled(comm.rank, comm.world_size).compute()), time.process_time()


def join(rank: int, world_size: int, path: str) -> None:
    """Run once in each process of a pool."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world_size)


def task(_: int) -> tuple[int, float, float]:
    """Run as a task of a pool: the process knows its rank."""
    rank = dist.get_rank()
    value = float(filled(rank, dist.get_world_size()).compute())
    return rank, value, time.process_time()


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Bind this process to one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def threads(job: Callable[[Communicator], tuple[float, float]], runs: int) -> Timing:
    """Time worlds of threads."""
    with on_one_core():
        ThreadWorld(RANKS).run(job)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(runs):
            value, _ = ThreadWorld(RANKS).run(job)[0]
        return time.perf_counter() - wall, time.process_time() - cpu, value


def own_threads(runs: int) -> Timing:
    """Time worlds of threads in which torchmetrics syncs by itself."""
    with routed():
        return threads(own, runs)


def launched(runs: int) -> Timing:
    """Time worlds of new processes; their CPU time begins when they are forked."""
    wall, cpu = time.perf_counter(), time.process_time()
    inside = 0.0
    for _ in range(runs):
        ended = run(RANKS, ours, backend="gloo")
        inside += sum(taken for _, taken in ended)
    return time.perf_counter() - wall, time.process_time() - cpu + inside, ended[0][0]


class Pool:
    """Processes with one process group for all runs."""

    def __init__(self, world_size: int) -> None:
        context: Any = torch.multiprocessing.get_context("spawn")
        self._size = world_size
        self._folder = tempfile.TemporaryDirectory(prefix="distmetrics-")
        path = str(Path(self._folder.name) / "store")
        self._pool = context.Pool(world_size)
        # One task a process: each blocks until all have joined.
        self._pool.starmap(
            join, [(rank, world_size, path) for rank in range(world_size)], chunksize=1
        )

    def __call__(self, runs: int) -> Timing:
        """Time as many runs."""
        before = {rank: taken for rank, _, taken in self._run()}
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(runs):
            ended = self._run()
        inside = sum(taken - before[rank] for rank, _, taken in ended)
        return time.perf_counter() - wall, time.process_time() - cpu + inside, ended[0][1]

    def _run(self) -> list[tuple[int, float, float]]:
        done: list[tuple[int, float, float]] = self._pool.map(task, range(self._size), chunksize=1)
        return done

    def end(self) -> None:
        """Let the processes go."""
        self._pool.terminate()
        self._pool.join()
        self._folder.cleanup()


def measure(rounds: int) -> dict[str, list[Timing]]:
    """Run all ways in turn."""
    pools = {size: Pool(size) for size in (2, RANKS)}
    ways: dict[str, Callable[[int], Timing]] = {
        "threads": lambda runs: threads(ours, runs),
        "threads, own sync": own_threads,
        "pool of 2": pools[2],
        "pool of 3": pools[3],
        "launch": launched,
    }
    taken: dict[str, list[Timing]] = {way: [] for way in ways}
    try:
        for _ in range(rounds):
            for way, act in ways.items():
                taken[way].append(act(RUNS[way]))
    finally:
        for pool in pools.values():
            pool.end()
    if len({value for timings in taken.values() for _, _, value in timings}) != 1:
        raise AssertionError(f"the ways do not get the same value: {taken}")
    return taken


def summary(taken: dict[str, list[Timing]]) -> dict[str, dict[str, Any]]:
    """Return medians over rounds, and how many times as fast the threads are."""
    found: dict[str, dict[str, Any]] = {}
    for way, timings in taken.items():
        wall = statistics.median(RUNS[way] / seconds for seconds, _, _ in timings)
        cpu = statistics.median(RUNS[way] / seconds for _, seconds, _ in timings)
        spread = [RUNS[way] / seconds for seconds, _, _ in timings]
        found[way] = {
            "runs_a_second": wall,
            "least": min(spread),
            "most": max(spread),
            "runs_a_cpu_second": cpu,
            "runs": RUNS[way] * len(timings),
        }
    for each in found.values():
        each["threads_are_times_as_fast"] = (
            found["threads"]["runs_a_second"] / each["runs_a_second"]
        )
        each["threads_are_times_as_fast_by_cpu"] = (
            found["threads"]["runs_a_cpu_second"] / each["runs_a_cpu_second"]
        )
    return found


def show(found: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    print(
        f"{'way':50} {'runs/s':>8} {'(min–max)':>16} {'per CPU s':>10} {'threads are':>14} "
        f"{'by CPU':>9}"
    )
    for way, each in found.items():
        print(
            f"{TITLES[way]:50} {each['runs_a_second']:8.1f} "
            f"{each['least']:7.1f}–{each['most']:<8.1f}"
            f"{each['runs_a_cpu_second']:10.1f} {each['threads_are_times_as_fast']:12.1f} ×"
            f"{each['threads_are_times_as_fast_by_cpu']:8.1f} ×"
        )
    print(f"\nThe aim is {GOAL} sharded runs a second in worlds of threads on one core.")


def main() -> None:
    """Measure, print, write."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--no-save", action="store_true")
    args = ask.parse_args()
    torch.set_num_threads(1)
    found = summary(measure(args.rounds))
    show(found)
    if not args.no_save:
        machine = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
        }
        (RESULTS / "kit.json").write_text(
            json.dumps({"machine": machine, "ways": found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
