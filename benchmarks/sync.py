"""Sync of metrics: distmetrics, the metric library's own way, and the bare collective.

All run on the same processes, in turn, in blocks of a few repeats whose first is left out, so that
each is measured warm and a drift of the machine meets all of them. The cases are in
benchmarks/sync_cases.py.

Before each repeat every rank computes until the same moment, as a job does before it syncs: between
collectives that follow each other at once gloo's threads and the kernel's paths stay warm, which
flatters the bare collective.

    python -m benchmarks.sync                      # all cases, table, JSON and plot in results/
    python -m benchmarks.sync --only counts        # one case, nothing written
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.common import (
    RESULTS,
    bind_to_core,
    garbage_kept,
    parser,
    plotted,
    versions,
    write_json,
)
from benchmarks.sync_cases import CASES
from benchmarks.torch_calls import counted_torch_calls
from distmetrics import Communicator, sync_and_compute, synced
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator

BLOCK = 25  # repeats of one way before the next has its turn
SLOW = 5  # repeats of a way that takes seconds
TICK = 5e-3  # seconds
SLOWEST = 2  # of one that takes half a minute: more than two ranks, image by image
OURS, BARE = "distmetrics", "bare all_gather"
Way = Callable[[], Any]


def meet(work: Tensor) -> None:
    """Return on all ranks at about the same moment: after a barrier and a little computing."""
    dist.barrier()
    moment = (time.perf_counter() // TICK + 2) * TICK  # all processes have the same clock
    while time.perf_counter() < moment:
        work @ work


def measure(comm: Communicator, name: str, repeats: int) -> dict[str, Any]:
    """Time each way in turn; return start and end of each repeat, collectives and bytes."""
    bind_to_core(comm.rank)
    case = CASES[name]
    metrics = case.make(comm.rank, comm.world_size)
    recording = RecordingCommunicator(comm)
    with synced(metrics, comm=recording) as plan:
        assert plan is not None
    nbytes = max(sent.inline.layout.nbytes + sent.bulk.layout.nbytes for sent in plan.sent)
    theirs, ours = (_torcheval if case.theirs == "torcheval" else _torchmetrics)(metrics, comm)
    with counted_torch_calls() as calls:
        theirs()
    payload = torch.zeros(nbytes, dtype=torch.uint8)
    rows = [torch.empty_like(payload) for _ in range(comm.world_size)]
    ways: dict[str, Callable[[], Any]] = {case.theirs: theirs, OURS: ours}
    ways[BARE] = lambda: dist.all_gather(rows, payload)
    spans: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    slow = case.slow or comm.world_size > 4
    few = SLOWEST if case.slow and comm.world_size > 2 else SLOW
    work = torch.randn(128, 128)
    for _ in range(-(-repeats // BLOCK)):
        for way, act in ways.items():
            once = slow and act is theirs
            if once and spans[way]:
                continue
            if not once:
                act()  # the slow one was warmed up when its calls were counted
            with garbage_kept():
                for _ in range(few if once else BLOCK):
                    meet(work)
                    start = time.perf_counter()
                    act()
                    spans[way].append((start, time.perf_counter()))
    collectives = {case.theirs: calls.total(), OURS: len(recording.calls), BARE: 1}
    return {"spans": spans, "collectives": collectives, "bytes": nbytes}


def _torchmetrics(metrics: Any, comm: Communicator) -> tuple[Way, Way]:
    """Return their sync, and ours: state put in and put back."""
    each = [metrics]
    if hasattr(metrics, "items"):
        each = [metric for _, metric in metrics.items(keep_base=True, copy_state=False)]

    def act() -> None:
        for metric in each:
            metric.sync()
        for metric in each:
            metric.unsync()

    def ours() -> None:
        with synced(metrics, comm=comm):
            pass

    return act, ours


def _torcheval(metrics: Any, comm: Communicator) -> tuple[Way, Way]:
    """Return their sync, and ours; both compute."""
    toolkit = importlib.import_module("torcheval.metrics.toolkit")
    theirs = toolkit.sync_and_compute_collection
    return lambda: theirs(metrics), lambda: sync_and_compute(metrics, comm=comm)


def summary(name: str, world_size: int, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Reduce the ranks' timings: a sync lasts from the last rank's begin to the last rank's end.

    The ranks begin at different times, after a bare barrier by as much as a bare collective takes,
    which is no part of the sync; the monotonic clock is the same for all processes of a machine.
    """
    lasted = {}
    for way in ranks[0]["spans"]:
        repeats = zip(*(rank["spans"][way] for rank in ranks), strict=True)
        lasted[way] = [
            1e3 * (max(end for _, end in spans) - max(start for start, _ in spans))
            for spans in repeats
        ]
    median = {way: statistics.median(times) for way, times in lasted.items()}
    spread = {
        way: {"median": median[way], "min": min(times), "max": max(times)}
        for way, times in lasted.items()
    }
    return {
        "case": name,
        "world_size": world_size,
        "theirs": CASES[name].theirs,
        "bytes": max(rank["bytes"] for rank in ranks),
        "collectives": ranks[0]["collectives"],
        "repeats": {way: len(times) for way, times in lasted.items()},
        "ms": spread,
        "times_theirs": median[CASES[name].theirs] / median[OURS],
        "times_bare": median[OURS] / median[BARE],
    }


def show(case: dict[str, Any]) -> None:
    """Print one case as a table."""
    head = f"{CASES[case['case']].title}, {case['world_size']} gloo ranks, {case['bytes']} bytes"
    print(f"\n{head}, median (min–max) of the repeats", flush=True)
    notes = {
        OURS: f"{case['times_theirs']:.0f} × {case['theirs']}",
        BARE: f"limit: we are at {case['times_bare']:.2f} ×",
    }
    for way, ms in case["ms"].items():
        spread = f"({ms['min']:.2f}–{ms['max']:.2f})"
        times = f"{ms['median']:9.2f} ms  {spread:>20} {case['repeats'][way]:4} ×"
        count = f"{case['collectives'][way]:5} collectives"
        print(f"  {way:16} {times}  {count}  {notes.get(way, '')}")


def plot(cases: list[dict[str, Any]], path: Path) -> None:
    """Draw the medians, on a logarithmic axis since they lie orders apart."""
    with plotted(path, figsize=(9, 0.6 * len(cases) + 1.5)) as axes:
        for offset, way in enumerate(("", OURS, BARE)):
            places = [index + 0.25 * (offset - 1) for index in range(len(cases))]
            medians = [case["ms"][way or case["theirs"]]["median"] for case in cases]
            bars = axes.barh(places, medians, height=0.24, label=way or "the library's own")
            axes.bar_label(bars, fmt="%.3g", fontsize=7)
        labels = [f"{case['case']}, W={case['world_size']}" for case in cases]
        axes.set_yticks(range(len(cases)), labels, fontsize=8)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel("milliseconds a sync (median), gloo")
        axes.legend(loc="lower right", fontsize=8)


def main() -> None:
    """Run the cases, print them, write JSON and plot."""
    ask = parser(__doc__)
    ask.add_argument("--repeats", type=int, default=50)
    ask.add_argument("--world-sizes", type=int, nargs="+", default=[2, 4, 8])
    ask.add_argument("--only", choices=list(CASES), nargs="+")
    args = ask.parse_args()
    cases = []
    for name in args.only or CASES:
        for world_size in [size for size in args.world_sizes if size in CASES[name].worlds]:
            try:
                ranks = run(world_size, measure, name, args.repeats, backend="gloo")
            except ModuleNotFoundError as error:
                print(f"\n{CASES[name].title}: not run, {error}")
                break
            cases.append(summary(name, world_size, ranks))
            show(cases[-1])
    if not args.only:
        write_json("sync.json", {"versions": versions(), "cases": cases})
        plot(cases, RESULTS / "sync.png")


if __name__ == "__main__":
    main()
