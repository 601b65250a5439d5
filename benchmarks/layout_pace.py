"""A sync over a layout beside a flat sync of as many shards, on the same processes, in turn.

    python -m benchmarks.layout_pace                 # writes results/layout_pace.json and .md
    python -m benchmarks.layout_pace --repeats 20    # printed only

Four gloo processes: 2 shards, each on 2 ranks. "flat" is a sync among the shards alone, made by
both lines of ranks at once, so that as many processes are busy as in a sync over the layout. A
repeat's time is that of its slowest rank, after a barrier; ways take turns in blocks, whose first
repeat is left out. Rounds are those of ``explain``, which its tests compare with transcripts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchmetrics import MeanMetric
from torchmetrics.classification import (
    BinaryAUROC,
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from distmetrics import layout, sync_and_compute
from distmetrics.testing import run

RESULTS = Path(__file__).parent / "results"
BLOCK = 15
WAYS = {
    "dp 2 x tp 2, same": ({"dp": 2, "tp": 2}, {"dp": "shard", "tp": "same"}),
    "dp 2 x tp 2, close": ({"dp": 2, "tp": 2}, {"dp": "shard", "tp": "same"}),
    "pp 2 x dp 2, last": ({"pp": 2, "dp": 2}, {"pp": "last", "dp": "shard"}),
}


def counts(shard: int) -> Any:
    """Return 20 metrics with small states."""
    draw = torch.Generator().manual_seed(shard)
    metrics: dict[str, Any] = {}
    for number in range(10):
        metrics[f"accuracy{number}"] = MulticlassAccuracy(10)
        metrics[f"f1{number}"] = MulticlassF1Score(10)
    for metric in metrics.values():
        metric.update(*torch.randint(10, (2, 100), generator=draw))
    metrics["loss"] = MeanMetric()
    metrics["loss"].update(torch.rand(5, generator=draw))
    return metrics


def large(shard: int) -> Any:
    """Return a state of 8 MB."""
    draw = torch.Generator().manual_seed(shard)
    metric = MulticlassConfusionMatrix(1000)
    metric.update(*torch.randint(1000, (2, 5000), generator=draw))
    return metric


def lists(shard: int) -> Any:
    """Return lists of 100 000 scores."""
    draw = torch.Generator().manual_seed(shard)
    metric = BinaryAUROC(thresholds=100)
    exact = BinaryAUROC()
    for each in (metric, exact):
        each.update(
            torch.rand(100_000, generator=draw), torch.randint(2, (100_000,), generator=draw)
        )
    return {"binned": metric, "exact": exact}


CASES = {"20 metrics, small": counts, "8 MB": large, "lists": lists}


def measure(comm: Any, case: str, repeats: int) -> dict[str, Any]:
    """Return the times of one case in milliseconds, and collectives, by way, on one rank."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    syncs: dict[str, Callable[[], Any]] = {}
    for way, (sizes, roles) in WAYS.items():
        same = "close" if way.endswith("close") else "exact"
        ranks = layout(sizes, comm=comm, same=same, **roles)
        metrics = CASES[case](ranks.rank)
        own = metrics if ranks.mesh.owns(comm.rank) else None
        syncs[f"flat beside {way}"] = partial(sync_and_compute, metrics, comm=ranks.inner)
        syncs[way] = partial(sync_and_compute, own, comm=ranks)
    times: dict[str, list[float]] = {way: [] for way in syncs}
    for _ in range(-(-repeats // BLOCK)):
        for way, sync in syncs.items():
            for repeat in range(BLOCK + 1):
                dist.barrier()
                start = time.perf_counter()
                sync()
                if repeat:
                    times[way].append(1000 * (time.perf_counter() - start))
    return times


def main() -> None:
    """Measure, print, write."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--repeats", type=int, default=90)
    args = ask.parse_args()
    rows = []
    for case in CASES:
        ranks = run(4, measure, case, args.repeats, backend="gloo")
        slowest = {}
        for way in ranks[0]:
            slowest[way] = [
                max(each) for each in zip(*(times[way] for times in ranks), strict=True)
            ]
        for way in WAYS:
            flat, over = slowest[f"flat beside {way}"], slowest[way]
            row: dict[str, Any] = {"case": case, "layout": way}
            row |= {"flat_ms": statistics.median(flat), "layout_ms": statistics.median(over)}
            row |= {"ratio": row["layout_ms"] / row["flat_ms"]}
            row |= {"ratio_of_fastest": min(over) / min(flat)}
            rows.append(row)
    lines = ["| metrics | layout | flat, ms | over the layout, ms | ratio | of the fastest |"]
    lines.append("|---|---|---|---|---|---|")
    lines += [
        f"| {row['case']} | {row['layout']} | {row['flat_ms']:.2f} | {row['layout_ms']:.2f} | "
        f"{row['ratio']:.2f} | {row['ratio_of_fastest']:.2f} |"
        for row in rows
    ]
    print("\n".join(lines))
    if args.repeats >= 90:
        facts = {"torch": torch.__version__, "processes": 4, "repeats": args.repeats}
        (RESULTS / "layout_pace.json").write_text(
            json.dumps({**facts, "rows": rows}, indent=1) + "\n"
        )
        (RESULTS / "layout_pace.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
