"""What metrics that are synced in the background cost the steps of a training loop.

Two gloo ranks train one model. Each way has blocks of steps, which take turns in the same
processes, so that what a busy machine adds is in all. A block begins with an epoch's metrics, which
are updated already, and goes on until their result is there. The ways:

- ``alone``: no metrics: the limit.
- ``load``: a thread of the same process computes metrics of as much data as all ranks have, with no
  other rank: the load of the background, with copy and sync left out.
- ``async``: ``sync_async`` on the first step.
- ``blocking``: ``sync_and_compute`` on the first step.

A step is in flight until the thread of ``load``, or the handle of ``async``, is done; the 99th
percentile of steps in flight is asked to be within 5 % of that of ``load``. The first step, which
makes the copy, is told apart: a block has one. Small metrics are over in it.

    python -m benchmarks.async_sync             # writes results/async_sync.json

It needs the extra ``bench-conformance``.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import distmetrics as dm
from benchmarks.common import arguments, write_json
from benchmarks.sync_cases import CASES, training_step
from distmetrics.testing import run
from distmetrics.tree import flatten

PARTS = ("first", "in flight", "rest", "all")
WAYS = ("alone", "load", "async", "blocking")
IN_BACKGROUND = ("load", "async")
CHOSEN = ("counts", "mAP")


def begin(way: str, metrics: Any, whole: Any) -> Callable[[], bool]:
    """Do what a way does on the first step; return what tells whether it is done."""
    if way == "async":
        handle = dm.sync_async(metrics)
        return handle.over.is_set
    if way == "load":
        alone = dm.SingleCommunicator()
        thread = threading.Thread(target=lambda: dm.sync_and_compute(whole, comm=alone))
        thread.start()
        return lambda: not thread.is_alive()
    if way == "blocking":
        dm.sync_and_compute(metrics)
    return lambda: True


def block(
    step: Callable[[], Any], way: str, metrics: Any, whole: Any, least: int
) -> dict[str, list[float]]:
    """Return the seconds of the first step, of those in flight, and of the others.

    All ranks make as many steps: at least ``least``, and until all of them are done.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    is_done: Callable[[], bool] = bool
    dist.barrier()
    for index in range(100_000):
        began = time.perf_counter()
        if index == 0:
            is_done = begin(way, metrics, whole)
        step()
        taken = time.perf_counter() - began
        in_flight = way in IN_BACKGROUND and not is_done()
        seconds["first" if index == 0 else "in flight" if in_flight else "rest"].append(taken)
        seconds["all"].append(taken)
        if index >= least and index % 10 == 0:
            busy = torch.tensor(float(in_flight))
            dist.all_reduce(busy)
            if not busy:
                break
    return seconds


def has_same_bits(metrics: Any) -> bool:
    """Return whether the result of the background is that of a blocking call, bit for bit."""
    handle = dm.sync_async(metrics)
    blocking, _ = flatten(dm.sync_and_compute(metrics))
    ours, _ = flatten(handle.result())

    def equal(one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor):
            return torch.equal(one.nan_to_num(-7.0), other.nan_to_num(-7.0))
        return repr(one) == repr(other)

    return len(ours) == len(blocking) and all(map(equal, ours, blocking))


def measured(comm: Any, case: str, rounds: int, least: int) -> dict[str, Any]:
    """Measure on one rank."""
    step = training_step(16)
    metrics = CASES[case].make(comm.rank, comm.world_size)
    whole = CASES[case].make(0, 1)
    same = has_same_bits(metrics)
    seconds = {way: defaultdict[str, list[float]](list) for way in WAYS}
    for index in range(rounds + 1):
        for way in WAYS if index % 2 else WAYS[::-1]:
            taken = block(step, way, metrics, whole, least)
            for part in taken if index else ():  # the first block makes what is kept
                seconds[way][part] += taken[part]
    return {"same bits": same, "seconds": {way: {**each} for way, each in seconds.items()}}


def percentile(values: list[float], share: float) -> float:
    """Return an order statistic; 0 where there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def summary(per_rank: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians and percentiles of both ranks' steps, in milliseconds."""
    result: dict[str, Any] = {"same bits": all(each["same bits"] for each in per_rank)}
    for way in WAYS:
        result[way] = {}
        for part in PARTS:
            values = [1e3 * x for each in per_rank for x in each["seconds"][way].get(part, [])]
            numbers = {"steps": len(values), "p50": percentile(values, 0.5)}
            result[way][part] = numbers | {"p99": percentile(values, 0.99)}
    return result


def show(case: str, result: dict[str, Any]) -> None:
    """Print a table."""
    print(f"{case}: {CASES[case].title}; same bits: {result['same bits']}")
    for way in WAYS:
        for part, each in result[way].items():
            if each["steps"]:
                numbers = f"p50 {each['p50']:8.2f} ms  p99 {each['p99']:8.2f} ms"
                print(f"  {way:18} {part:10} {each['steps']:6} steps  {numbers}")


def main() -> None:
    """Measure, print the tables, write JSON."""
    args = arguments(__doc__, rounds=(20, 1), steps=(200, 20), cases=(len(CHOSEN), 1))
    results = {}
    for case in CHOSEN[: args.cases]:
        per_rank = run(2, measured, case, args.rounds, args.steps, backend="gloo")
        results[case] = summary(per_rank)
        show(case, results[case])
    if args.is_whole:
        write_json("async_sync.json", results)


if __name__ == "__main__":
    main()
