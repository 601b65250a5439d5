"""Sync of a collection of 20 multiclass metrics: distmetrics, torchmetrics, and the bare collective.

The claim: at least 15 times faster than torchmetrics' own sync without compute groups, and at most 3 times one bare
all_gather of the same bytes. All run on the same processes, in turn, in blocks of a few repeats whose first is left
out, so that each is measured warm and a drift of the machine meets all of them.

    python -m benchmarks.sync                 # W = 2 and 4 on gloo, table, JSON and plot in benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchmetrics import MetricCollection, classification

from distmetrics import Communicator, synced
from distmetrics.comm.record import RecordingCommunicator, counted_torch_calls
from distmetrics.testing import run

CLASSES = 10
BLOCK = 25  # repeats of one way before the next has its turn
RESULTS = Path(__file__).parent / "results"
_NAMES = ("Accuracy", "Precision", "Recall", "F1Score", "Specificity", "StatScores", "FBetaScore", "HammingDistance")


def collection(*, compute_groups: bool) -> MetricCollection:
    """Twenty metrics of ten classes with sum states: counts, confusion matrices, binned curves."""
    made: dict[str, Any] = {}
    for average in ("macro", "micro"):
        for name in _NAMES:
            extra = {"beta": 2.0} if name == "FBetaScore" else {}
            kind = getattr(classification, f"Multiclass{name}")
            made[f"{average}_{name}"] = kind(num_classes=CLASSES, average=average, validate_args=False, **extra)
    for name in ("ConfusionMatrix", "CohenKappa", "MatthewsCorrCoef", "JaccardIndex"):
        made[name] = getattr(classification, f"Multiclass{name}")(num_classes=CLASSES, validate_args=False)
    return MetricCollection(made, compute_groups=compute_groups)


def measure(comm: Communicator, compute_groups: bool, repeats: int) -> dict[str, Any]:
    """Run on every rank: time each way in turn; returns start and end of each repeat, collectives and bytes."""
    if hasattr(os, "sched_setaffinity"):  # one core a rank, as launchers bind them: a rank must not run on another's
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    torch.manual_seed(comm.rank)
    metrics = collection(compute_groups=compute_groups)
    for _ in range(3):
        metrics.update(torch.randn(64, CLASSES), torch.randint(CLASSES, (64,)))
    recording = RecordingCommunicator(comm)
    with synced(metrics, comm=recording) as plan:
        assert plan is not None
    payload = torch.zeros(plan.sent[comm.rank].inline.nbytes, dtype=torch.uint8)
    rows = [torch.empty_like(payload) for _ in range(comm.world_size)]

    def ours() -> None:
        with synced(metrics, comm=comm):
            pass

    def theirs() -> None:
        each = [metric for _, metric in metrics.items(keep_base=True, copy_state=False)]
        for metric in each:
            metric.sync()
        for metric in each:
            metric.unsync()

    def bare() -> None:
        dist.all_gather(rows, payload)

    with counted_torch_calls() as calls:
        theirs()
    ways: dict[str, Callable[[], None]] = {"torchmetrics": theirs, "distmetrics": ours, "bare all_gather": bare}
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(-(-repeats // BLOCK)):
        for name, way in ways.items():
            way()
            for _ in range(BLOCK):
                dist.barrier()
                start = time.perf_counter()
                way()
                spans[name].append((start, time.perf_counter()))
    collectives = {"torchmetrics": calls.total(), "distmetrics": len(recording.calls), "bare all_gather": 1}
    return {"spans": spans, "collectives": collectives, "bytes": payload.numel(), "metrics": len(metrics)}


def summary(world_size: int, groups: bool, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Reduce the ranks' timings: a sync lasts from when the last rank has begun to when the last rank is done.

    The ranks leave the barrier before it at different times, by as much as a bare collective takes, which is no part of
    the sync; the monotonic clock is the same for all processes of a machine.
    """
    lasted = {
        name: [
            max(end for _, end in spans) - max(start for start, _ in spans)
            for spans in zip(*(rank["spans"][name] for rank in ranks), strict=True)
        ]
        for name in ranks[0]["spans"]
    }
    median = {name: statistics.median(times) for name, times in lasted.items()}
    return {
        "world_size": world_size,
        "compute_groups": groups,
        "bytes": ranks[0]["bytes"],
        "metrics": ranks[0]["metrics"],
        "collectives": ranks[0]["collectives"],
        "ms": {n: {"median": 1e3 * median[n], "min": 1e3 * min(t), "max": 1e3 * max(t)} for n, t in lasted.items()},
        "times_torchmetrics": median["torchmetrics"] / median["distmetrics"],
        "times_bare": median["distmetrics"] / median["bare all_gather"],
    }


def show(case: dict[str, Any], repeats: int) -> None:
    """Print one case as a table."""
    groups = "on" if case["compute_groups"] else "off"
    print(
        f"\nsync of {case['metrics']} metrics (groups {groups}), {case['world_size']} gloo ranks, "
        f"{case['bytes']} bytes, median of {repeats} (min–max)"
    )
    for name, ms in case["ms"].items():
        count = case["collectives"][name]
        note = {
            "distmetrics": f"{case['times_torchmetrics']:.0f} × torchmetrics",
            "bare all_gather": f"limit: we are at {case['times_bare']:.2f} ×",
        }.get(name, "")
        spread = f"({ms['min']:.2f}–{ms['max']:.2f})"
        print(f"  {name:16} {ms['median']:9.2f} ms  {spread:>18}  {count:4} collective{'s' * (count > 1):1}  {note}")


def plot(cases: list[dict[str, Any]], path: Path) -> None:
    """Draw the medians, on a logarithmic axis since they lie two orders apart."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    labels = [f"W={case['world_size']}\ngroups {'on' if case['compute_groups'] else 'off'}" for case in cases]
    for offset, name in enumerate(cases[0]["ms"]):
        places = [index + 0.27 * (offset - 1) for index in range(len(cases))]
        bars = axes.bar(places, [case["ms"][name]["median"] for case in cases], width=0.25, label=name)
        axes.bar_label(bars, fmt="%.3g", fontsize=8)
    axes.set_xticks(range(len(cases)), labels)
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds a sync (median)")
    axes.set_title("Sync of 20 multiclass metrics, gloo")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run all cases, print them, write JSON and plot."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--repeats", type=int, default=25)
    ask.add_argument("--world-sizes", type=int, nargs="+", default=[2, 4])
    ask.add_argument("--out", type=Path, default=RESULTS)
    args = ask.parse_args()
    cases = []
    for world_size in args.world_sizes:
        for groups in (False, True):
            ranks = run(world_size, measure, groups, args.repeats, backend="gloo")
            cases.append(summary(world_size, groups, ranks))
            show(cases[-1], args.repeats)
    args.out.mkdir(parents=True, exist_ok=True)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    (args.out / "sync.json").write_text(json.dumps({"versions": versions, "cases": cases}, indent=1) + "\n")
    plot(cases, args.out / "sync.png")


if __name__ == "__main__":
    main()
