"""What a training log costs a step, against raw DDP and by hand.

Two gloo ranks train one model; the ways take turns step by step in the same processes, so that what
a busy machine adds is in all. Values are tensors, as a step has them. Printed are the time of a
step and, less noisy, what of it is spent in the calls of a way. The ways:

- ``raw``: nothing is logged: the limit.
- ``log``: ours, a call a step with all values, and a flush each 50 steps.
- ``calls``: ours, a call a value.
- ``buffer``: what trainers write by hand: weighted sums in a dict, stacked and reduced each 50.
- ``metrics``: a ``MeanMetric`` of torchmetrics a name, computed each 50, as Composer does.
- ``lightning``: what Lightning's ``self.log(sync_dist=True, on_epoch=True)`` keeps and reduces.
- ``gather``: one all_reduce a value and step, as ``accelerator.reduce`` does.

    python -m benchmarks.log                      # table, and JSON in benchmarks/results
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from torch import Tensor
from torchmetrics import MeanMetric

import distmetrics as dm
from benchmarks.common import arguments, write_json
from benchmarks.sync_cases import training_step
from distmetrics.testing import run

WINDOW = 50  # steps between two flushes
COUNTS = [1, 20, 200]  # names
_SLOW = 200  # names from which on only ours, by hand and the limit are measured

Way = tuple[Callable[[Tensor], Any], Callable[[], Any]]  # for the loss of a step, at its end


def by_hand(names: list[str]) -> Way:
    """Return weighted sums by name, as trainers write them by hand, which are reduced at once."""
    sums: dict[str, Tensor] = {}
    weights: dict[str, float] = {}

    def note(loss: Tensor) -> None:
        for name in names:
            weighted = loss.detach().double() * 8.0
            if name in sums:
                sums[name] += weighted
                weights[name] += 8.0
            else:
                sums[name], weights[name] = weighted, 8.0

    def flush() -> dict[str, float]:
        order = sorted(sums)
        counts = torch.tensor([weights[name] for name in order], dtype=torch.float64)
        both = torch.stack([torch.stack([sums[name] for name in order]), counts])
        dist.all_reduce(both)
        sums.clear()
        weights.clear()
        return dict(zip(order, (both[0] / both[1]).tolist(), strict=True))

    return note, flush


def by_metrics(names: list[str]) -> Way:
    """Return metric objects, each of which syncs itself."""
    metrics = {name: MeanMetric() for name in names}

    def note(loss: Tensor) -> None:
        for metric in metrics.values():
            metric.update(loss.detach(), 8.0)

    def flush() -> None:
        for metric in metrics.values():
            metric.compute().item()
            metric.reset()

    return note, flush


def by_lightning(names: list[str]) -> Way:
    """Return what Lightning's trainer keeps; private, but nothing public does it without one."""
    results = _ResultCollection(training=True)

    def reduced(value: Tensor, **_: Any) -> Tensor:
        dist.all_reduce(value)
        return value

    def note(loss: Tensor) -> None:
        options = {"sync_dist": True, "sync_dist_fn": reduced, "batch_size": 8}
        for name in names:
            results.log("training_step", name, loss, **options)

    def flush() -> None:
        results.metrics(on_step=False)
        results.reset()

    return note, flush


def by_log(names: list[str]) -> Way:
    """Return our log, a call a step."""
    log = dm.Log()
    return lambda loss: log.mean(dict.fromkeys(names, loss), weight=8.0), log.flush


def by_calls(names: list[str]) -> Way:
    """Return our log, a call a value."""
    log = dm.Log()

    def note(loss: Tensor) -> None:
        for name in names:
            log.mean(name, loss, weight=8.0)

    return note, log.flush


def by_gather(names: list[str]) -> Way:
    """Return a reduction a value."""
    numbers = dict.fromkeys(names, 0.0)

    def note(loss: Tensor) -> None:
        for name in names:
            value = loss.detach().clone()
            dist.all_reduce(value)
            numbers[name] = float(value)

    return note, lambda: None


WAYS: dict[str, Callable[[list[str]], Way]] = {
    "raw": lambda names: (lambda loss: None, lambda: None),
    "log": by_log,
    "calls": by_calls,
    "buffer": by_hand,
    "metrics": by_metrics,
    "lightning": by_lightning,
    "gather": by_gather,
}


def steps(count: int, rounds: int, warm: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of steps of each way, of those that flush and of the others.

    The ways take turns step by step, in another order each time. ``logging`` is what of a step is
    spent in the calls of a way: steps of ranks that wait for each other differ by more.
    """
    step = training_step(8)
    names = [f"train/name_{index}" for index in range(count)]
    ways = list(WAYS)[:4] if count >= _SLOW else list(WAYS)
    loggers = {way: WAYS[way](names) for way in ways}
    order = random.Random(0)  # the same on all ranks
    kinds = ("plain", "flush", "logging plain", "logging flush")
    seconds: dict[str, dict[str, list[float]]] = {way: {kind: [] for kind in kinds} for way in ways}
    for index in range(-warm, rounds * WINDOW):
        is_last = index % WINDOW == WINDOW - 1
        for way in order.sample(ways, len(ways)):
            note, flush = loggers[way]
            began = time.perf_counter()
            loss = step()
            done = time.perf_counter()
            note(loss)
            if is_last:
                flush()
            ended = time.perf_counter()
            if index >= 0:
                kind = "flush" if is_last else "plain"
                seconds[way][kind].append(ended - began)
                seconds[way][f"logging {kind}"].append(ended - done)
    return seconds


def per_step(seconds: dict[str, list[float]], part: str = "") -> float:
    """Return the seconds of a step: medians, of which those of a flush count once a window."""
    plain = statistics.median(seconds[f"{part}plain"])
    flushing = seconds[f"{part}flush"]
    flush = statistics.median(flushing) if flushing else plain
    return ((WINDOW - 1) * plain + flush) / WINDOW


def measured(_comm: Any, counts: list[int], rounds: int, warm: int) -> dict[str, Any]:
    """Return the seconds of steps, and of the calls in them, by names and ways, on one rank."""
    found = {}
    for count in counts:
        found[str(count)] = {
            way: {"step": per_step(seconds), "calls": per_step(seconds, "logging ")}
            for way, seconds in steps(count, rounds, warm).items()
        }
    return found


def main() -> None:
    """Measure, print the table, write JSON."""
    args = arguments(__doc__, rounds=(20, 1), warm=(2 * WINDOW, 2), counts=(len(COUNTS), 1))
    asked = COUNTS[: args.counts], args.rounds, args.warm
    found = run(2, measured, *asked, backend="gloo")[0]
    for count, ways in found.items():
        raw = ways["raw"]["step"]
        print(f"{count} names: a step of raw DDP {1e3 * raw:.2f} ms")
        for way, each in ways.items():
            share = f"{1e6 * each['calls']:6.0f} us {100 * each['calls'] / raw:6.1f} %"
            print(f"  {way:10} {1e3 * each['step']:8.2f} ms, in its calls {share}")
    if args.is_whole:
        write_json("log.json", {"steps": found})


if __name__ == "__main__":
    main()
