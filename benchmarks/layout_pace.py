"""A sync over a layout beside a flat sync of as many shards, on the same processes, in turn.

    python -m benchmarks.layout_pace            # writes results/layout_pace.md

Four gloo processes: 2 shards, each on 2 ranks. "flat" is a sync among the shards alone, made by
both lines of ranks at once, so that as many processes are busy as in a sync over the layout. A
repeat's time is that of its slowest rank, after a barrier.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from functools import partial
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

from benchmarks.common import RESULTS, arguments, slowest, spans_in_turns, table
from distmetrics import layout, sync_and_compute
from distmetrics.testing import run

BLOCK = 15
WAYS = {
    "dp 2 x tp 2, same": ({"dp": 2, "tp": 2}, {"dp": "shard", "tp": "same"}),
    "dp 2 x tp 2, close": ({"dp": 2, "tp": 2}, {"dp": "shard", "tp": "same"}),
    "pp 2 x dp 2, last": ({"pp": 2, "dp": 2}, {"pp": "last", "dp": "shard"}),
}


def counts(draw: torch.Generator) -> Any:
    """Return 20 metrics with small states."""
    kinds = {"accuracy": MulticlassAccuracy, "f1": MulticlassF1Score}
    metrics: dict[str, Any] = {
        f"{name}{number}": kind(10) for number in range(10) for name, kind in kinds.items()
    }
    for metric in metrics.values():
        metric.update(*torch.randint(10, (2, 100), generator=draw))
    metrics["loss"] = MeanMetric()
    metrics["loss"].update(torch.rand(5, generator=draw))
    return metrics


def large(draw: torch.Generator) -> Any:
    """Return a state of 8 MB."""
    metric = MulticlassConfusionMatrix(1000)
    metric.update(*torch.randint(1000, (2, 5000), generator=draw))
    return metric


def lists(draw: torch.Generator) -> Any:
    """Return lists of 100 000 scores."""
    metrics = {"binned": BinaryAUROC(thresholds=100), "exact": BinaryAUROC()}
    for metric in metrics.values():
        scores = torch.rand(100_000, generator=draw)
        metric.update(scores, torch.randint(2, (100_000,), generator=draw))
    return metrics


CASES = {"20 metrics, small": counts, "8 MB": large, "lists": lists}


def measure(comm: Any, case: str, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Return the begin and end of each repeat of one case by way, on one rank."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    syncs: dict[str, Callable[[], Any]] = {}
    for way, (sizes, roles) in WAYS.items():
        same = "close" if way.endswith("close") else "exact"
        ranks = layout(sizes, comm=comm, same=same, **roles)
        metrics = CASES[case](torch.Generator().manual_seed(ranks.rank))
        own = metrics if ranks.mesh.owns(comm.rank) else None
        syncs[f"flat beside {way}"] = partial(sync_and_compute, metrics, comm=ranks.inner)
        syncs[way] = partial(sync_and_compute, own, comm=ranks)
    return spans_in_turns(syncs, repeats, block=BLOCK, meet=dist.barrier)


def main() -> None:
    """Measure, print, write."""
    args = arguments(__doc__, repeats=(90, 15))
    rows = []
    for case in CASES:
        ranks = run(4, measure, case, args.repeats, backend="gloo")
        for way in WAYS:
            flat, over = (
                slowest([spans[each] for spans in ranks]) for each in (f"flat beside {way}", way)
            )
            medians = statistics.median(flat), statistics.median(over)
            ratios = medians[1] / medians[0], min(over) / min(flat)
            rows.append([case, way, *(f"{value:.2f}" for value in (*medians, *ratios))])
    head = ["metrics", "layout", "flat, ms", "over the layout, ms", "ratio", "of the fastest"]
    said = table(head, rows)
    print(said)
    if args.is_whole:
        (RESULTS / "layout_pace.md").write_text(said + "\n")


if __name__ == "__main__":
    main()
