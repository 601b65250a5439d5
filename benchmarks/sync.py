"""Sync of metrics: distmetrics, the metric library's own way, and the bare collective.

All run on the same processes, in turn. The metrics are in benchmarks/sync_cases.py.

Before each repeat every rank computes until the same moment, as a job does before it syncs: between
collectives that follow each other at once gloo's threads and the kernel's paths stay warm, which
flatters the bare collective.

    python -m benchmarks.sync                      # table, and JSON in benchmarks/results
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.common import arguments, bind_to_core, spans_in_turns, versions, write_json
from benchmarks.sync_cases import CASES
from benchmarks.torch_calls import counted_torch_calls
from distmetrics import Communicator, synced
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator

CHOSEN, WORLDS = ("counts", "counts, groups", "exact"), (2, 4)
BLOCK = 25  # repeats of one way before the next has its turn
TICK = 5e-3  # seconds
THEIRS, OURS, BARE = "torchmetrics", "distmetrics", "bare all_gather"


def meet(work: Tensor) -> None:
    """Return on all ranks at about the same moment: after a barrier and a little computing."""
    dist.barrier()
    moment = (time.perf_counter() // TICK + 2) * TICK  # all processes have the same clock
    while time.perf_counter() < moment:
        work @ work


def measure(comm: Communicator, name: str, repeats: int) -> dict[str, Any]:
    """Time each way in turn; return begin and end of each repeat, collectives and bytes."""
    bind_to_core(comm.rank)
    metrics = CASES[name].make(comm.rank, comm.world_size)
    each = [metric for _, metric in metrics.items(keep_base=True, copy_state=False)]

    def theirs() -> None:
        for metric in each:
            metric.sync()
        for metric in each:
            metric.unsync()

    def ours(comm: Communicator = comm) -> Any:
        with synced(metrics, comm=comm) as plan:
            return plan

    recording = RecordingCommunicator(comm)
    nbytes = max(
        sent.inline.layout.nbytes + sent.bulk.layout.nbytes for sent in ours(recording).sent
    )
    with counted_torch_calls() as calls:
        theirs()
    payload = torch.zeros(nbytes, dtype=torch.uint8)
    rows = [torch.empty_like(payload) for _ in range(comm.world_size)]
    ways: dict[str, Callable[[], Any]] = {THEIRS: theirs, OURS: ours}
    ways[BARE] = lambda: dist.all_gather(rows, payload)
    together = partial(meet, torch.randn(128, 128))
    spans = spans_in_turns(ways, repeats, block=min(BLOCK, repeats), meet=together)
    collectives = {THEIRS: calls.total(), OURS: len(recording.calls), BARE: 1}
    return {"spans": spans, "collectives": collectives, "bytes": nbytes}


def summary(name: str, world_size: int, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Reduce the ranks' timings: a sync lasts from the last rank's begin to the last rank's end.

    The ranks begin at different times, after a bare barrier by as much as a bare collective takes,
    which is no part of the sync; the monotonic clock is the same for all processes of a machine.
    """
    ms = {}
    for way in ranks[0]["spans"]:
        repeats = zip(*(rank["spans"][way] for rank in ranks), strict=True)
        times = [
            1e3 * (max(end for _, end in spans) - max(start for start, _ in spans))
            for spans in repeats
        ]
        ms[way] = {"median": statistics.median(times), "min": min(times), "max": max(times)}
    return {
        "case": name,
        "world_size": world_size,
        "bytes": max(rank["bytes"] for rank in ranks),
        "collectives": ranks[0]["collectives"],
        "ms": ms,
        "times_theirs": ms[THEIRS]["median"] / ms[OURS]["median"],
        "times_bare": ms[OURS]["median"] / ms[BARE]["median"],
    }


def show(case: dict[str, Any]) -> None:
    """Print one case as a table."""
    title = CASES[case["case"]].title
    print(f"\n{title}, {case['world_size']} gloo ranks, {case['bytes']} bytes", flush=True)
    for way, ms in case["ms"].items():
        times = f"{ms['median']:9.2f} ms ({ms['min']:.2f}–{ms['max']:.2f})"
        print(f"  {way:16} {times}, {case['collectives'][way]} collectives")
    ratios = f"{case['times_theirs']:.0f} × torchmetrics, {case['times_bare']:.2f} × the limit"
    print(f"  {ratios}")


def main() -> None:
    """Run the cases, print them, write JSON."""
    args = arguments(__doc__, repeats=(50, 2), cases=(len(CHOSEN), 1), worlds=(len(WORLDS), 1))
    cases = []
    for name in CHOSEN[: args.cases]:
        for world_size in WORLDS[: args.worlds]:
            ranks = run(world_size, measure, name, args.repeats, backend="gloo")
            cases.append(summary(name, world_size, ranks))
            show(cases[-1])
    if args.is_whole:
        write_json("sync.json", {"versions": versions(), "cases": cases})


if __name__ == "__main__":
    main()
