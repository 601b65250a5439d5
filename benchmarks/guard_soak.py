"""Minutes of random collectives on real ranks: no false verdict, no leak, every result right.

World after world of a few seconds to a minute: random collectives, metrics and torch's own calls
under guard.watch(), random delays of single ranks (some of seconds), guarded epochs. Every value is
compared with what one process would have computed. Now and then a rank is killed, and the others
must say so; the next world starts afresh.

    python -m benchmarks.guard_soak             # 20 minutes; table, and JSON in benchmarks/results
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torchmetrics.classification import BinaryAccuracy

import distmetrics as dm
from benchmarks.common import arguments, write_json
from distmetrics import guard
from distmetrics.launch.spawn import launch

KILLED = 0.15  # of the worlds


def soak(comm: Any, seed: int, seconds: float, killed: int) -> dict[str, Any]:
    """Make the same random calls on every rank; return counts, and the growth of memory and files.

    They grow from the first epoch on: what is loaded and connected once is in it.
    """
    same, own = random.Random(seed), random.Random(f"{seed} {comm.rank}")
    process, samples, calls = psutil.Process(), [], 0
    until = time.monotonic() + seconds
    while dm.all_reduce(float(time.monotonic() < until), "min", name="go on") > 0:
        with guard.guarded_epoch(f"after {calls}"):
            for _ in range(same.randrange(5, 40)):
                if own.random() < 0.05:
                    time.sleep(own.choice([0.0, 0.05, 0.3, 1.0]))
                CALLS[same.randrange(len(CALLS))](comm, same)
                calls += 1
        samples.append((process.memory_info().rss, process.num_fds()))
        if comm.rank == killed and time.monotonic() > until - seconds / 2:
            os.kill(os.getpid(), signal.SIGKILL)
    grown = [last - first for first, last in zip(samples[0], samples[-1], strict=True)]
    return {"calls": calls, "grown": grown}


def _reduce(comm: Any, same: random.Random) -> None:
    x, size = same.randrange(100), comm.world_size
    _equal(dm.all_reduce(torch.tensor(x + comm.rank)), size * x + size * (size - 1) // 2)


def _gather(comm: Any, same: random.Random) -> None:
    rows = same.randrange(4)
    found = dm.all_gather_cat(torch.arange(rows * (comm.rank + 1)))
    _equal(len(found), rows * comm.world_size * (comm.world_size + 1) // 2)


def _objects(comm: Any, same: random.Random) -> None:
    _equal(dm.all_gather_object((comm.rank, same.random()))[0][0], 0)


def _large(comm: Any, same: random.Random) -> None:
    total = dm.all_reduce(torch.ones(same.choice([10, 100_000])), name="large").sum()
    _equal(float(total) % comm.world_size, 0)


def _metric(comm: Any, same: random.Random) -> None:
    metric, hits = BinaryAccuracy(), same.randrange(1, 20)
    for _ in range(comm.rank % 3):  # some ranks have no batch
        metric.update(torch.ones(hits), torch.ones(hits, dtype=torch.long))
    _equal(float(dm.sync_and_compute(metric)), 1.0)


def _foreign(comm: Any, same: random.Random) -> None:
    x = torch.tensor(float(comm.rank))
    with guard.watch():
        dist.all_reduce(x, op=same.choice([dist.ReduceOp.SUM, dist.ReduceOp.MAX]))


def _barrier(comm: Any, same: random.Random) -> None:
    dm.barrier(name=f"barrier {same.randrange(10)}")


CALLS = (_reduce, _gather, _objects, _large, _metric, _foreign, _barrier)


def _equal(found: Any, wanted: Any) -> None:
    if found != wanted:
        raise AssertionError(f"got {found}, one process has {wanted}")


def one_world(seed: int, ranks: int, seconds: float) -> dict[str, Any]:
    """Run a world of up to so many ranks and seconds to its end; return how it ended.

    With it, this process's memory and files.
    """
    choice, process = random.Random(seed), psutil.Process()
    seconds, ranks = choice.uniform(5.0, seconds), choice.choice(range(2, ranks + 1))
    killed = choice.randrange(ranks) if choice.random() < KILLED else -1
    ended = launch(soak, ranks, seed, seconds, killed, limit=seconds + 90)
    errors = {outcome.rank: repr(outcome.error) for outcome in ended if outcome.error is not None}
    wrong = {}
    for rank in range(ranks):
        said = errors.get(rank, "")
        if killed < 0 and said:
            wrong[rank] = said
        elif killed >= 0 and not ("PeerLostError" in said and f"rank {killed}" in said):
            wrong[rank] = said or "no error, and a rank was killed"
    values = [outcome.value for outcome in ended if outcome.value is not None]
    return {
        "seed": seed,
        "world_size": ranks,
        "seconds": seconds,
        "killed": killed,
        "wrong": wrong,
        "calls": values[0]["calls"] if values else 0,
        "grown": [max(each) for each in zip(*(value["grown"] for value in values), strict=True)],
        "rss": process.memory_info().rss,
        "files": process.num_fds(),
    }


def main() -> None:
    """Run, print and write; exit code 1 for a false verdict or a wrong result."""
    args = arguments(__doc__, minutes=(20.0, 0.1), ranks=(16, 3), seconds=(60.0, 6.0))
    worlds: list[dict[str, Any]] = []
    until = time.monotonic() + 60 * args.minutes
    while time.monotonic() < until:
        world = one_world(len(worlds), args.ranks, args.seconds)
        worlds.append(world)
        ran = f"{world['world_size']:2} ranks, {world['seconds']:4.0f} s, {world['calls']:6} calls"
        ended = f"killed {world['killed']:2}, wrong {world['wrong'] or 'none'}"
        mine = f"launcher {world['rss'] / 2**20:.0f} MiB, {world['files']} files"
        print(f"world {len(worlds):3}: {ran}, {ended}, {mine}", flush=True)
    wrong = sum(bool(world["wrong"]) for world in worlds)
    print(f"{len(worlds)} worlds, {wrong} worlds with something wrong")
    if args.is_whole:
        write_json("guard_soak.json", worlds)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
