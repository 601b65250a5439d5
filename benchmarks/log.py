"""What a training log costs: a step, a flush, and its bytes, against raw DDP and by hand.

Two gloo ranks train one model; the ways take turns step by step in the same processes, so that what
a busy machine adds is in all. Values are tensors, as a step has them. Printed are the time of a
step and, less noisy, what of it is spent in the calls of a way. The ways:

- ``raw``: nothing is logged: the limit.
- ``log``: ours, a call a step with all values, and a flush each 50 steps.
- ``calls``: ours, a call a value.
- ``buffer``: what trainers write by hand: weighted sums in a dict, stacked and reduced each 50.
- ``lists``: values kept in lists, averaged and reduced name by name each 50, as torchtitan does.
- ``metrics``: a ``MeanMetric`` of torchmetrics a name, computed each 50, as Composer does.
- ``lightning``: what Lightning's ``self.log(sync_dist=True, on_epoch=True)`` keeps and reduces.
- ``gather``: one all_reduce a value and step, as ``accelerator.reduce`` does.

    python -m benchmarks.log                      # table, and JSON in benchmarks/results
    python -m benchmarks.log --names 20 --rounds 4
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
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchmetrics import MeanMetric

import distmetrics as dm
from benchmarks.common import parser, seconds_of, write_json
from distmetrics.collectives.exchange import frame_size
from distmetrics.testing import run

WINDOW = 50  # steps between two flushes
WARM_UP = 2 * WINDOW
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


def by_lists(names: list[str]) -> Way:
    """Return lists of values, and a reduction a name."""
    values: dict[str, list[Tensor]] = {name: [] for name in names}

    def note(loss: Tensor) -> None:
        for each in values.values():
            each.append(loss.detach())

    def flush() -> None:
        for each in values.values():
            mean = torch.stack(each).mean()
            dist.all_reduce(mean)
            mean.item()
            each.clear()

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
    "lists": by_lists,
    "metrics": by_metrics,
    "lightning": by_lightning,
    "gather": by_gather,
}


def steps(count: int, width: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of steps of each way, of those that flush and of the others.

    The ways take turns step by step, in another order each time. ``logging`` is what of a step is
    spent in the calls of a way: steps of ranks that wait for each other differ by more.
    """
    torch.manual_seed(0)
    layers = [nn.Linear(width, width), nn.ReLU()] * 4
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, labels = torch.randn(8, width), torch.arange(8)
    names = [f"train/name_{index}" for index in range(count)]
    ways = list(WAYS)[:4] if count >= _SLOW else list(WAYS)
    loggers = {way: WAYS[way](names) for way in ways}
    order = random.Random(0)  # the same on all ranks
    kinds = ("plain", "flush", "logging plain", "logging flush")
    seconds: dict[str, dict[str, list[float]]] = {way: {kind: [] for kind in kinds} for way in ways}
    for index in range(-WARM_UP, rounds * WINDOW):
        is_last = bool(names) and index % WINDOW == WINDOW - 1
        for way in order.sample(ways, len(ways)):
            note, flush = loggers[way]
            began = time.perf_counter()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
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


def flushes(count: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of a flush, of a bare all_reduce, and of one by hand."""
    names = [f"train/name_{index}" for index in range(count)]
    bare, value = torch.zeros(2 * count, dtype=torch.float64), torch.tensor(1.0)
    ours, theirs = by_calls(names), by_hand(names)
    calls = {
        "flush": ours[1],
        "by hand": theirs[1],
        "bare all_reduce": lambda: dist.all_reduce(bare),
    }
    taken: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(rounds):
        ours[0](value)
        theirs[0](value)
        for way, call in calls.items():
            dist.barrier()
            taken[way].append(seconds_of(call))
    return {way: statistics.median(each) for way, each in taken.items()}


def measured(_comm: Any, counts: list[int], width: int, rounds: int) -> dict[str, Any]:
    """Measure on one rank."""
    by_count = {str(count): steps(count, width, rounds) for count in counts}
    return {"steps": by_count, "flush": {str(n): flushes(n, 40) for n in counts if n}}


def bytes_sent(count: int, world_size: int) -> tuple[int, int]:
    """Return what a rank sends in a flush of known means, and in a bare ring all_reduce of them."""
    bare = 2 * (world_size - 1) * 16 * count // world_size
    return bare + frame_size(world_size) * (world_size - 1), bare


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of steps, and of the calls in them, by names and ways; and of flushes."""
    by_count = {
        count: {
            way: {"step": per_step(each), "calls": per_step(each, "logging ")}
            for way, each in seconds.items()
        }
        for count, seconds in result["steps"].items()
    }
    return {"steps": by_count, "flush": result["flush"]}


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    for count, seconds in result["steps"].items():
        raw = per_step(seconds["raw"])
        print(f"{count} names: a step of raw DDP {1e3 * raw:.2f} ms")
        for way, each in seconds.items():
            mine, logging = per_step(each), per_step(each, "logging ")
            line = f"  {way:10} {1e3 * mine:8.2f} ms {100 * (mine / raw - 1):+7.1f} %"
            print(f"{line}, in its calls {1e6 * logging:6.0f} us {100 * logging / raw:6.1f} %")
    for count, taken in result["flush"].items():
        print(f"a flush of {count} names:")
        for way, each in taken.items():
            times = each / taken["bare all_reduce"]
            print(f"  {way:16} {1e6 * each:8.0f} us {times:5.1f} x")
    for world_size in (2, 8):
        ours, bare = bytes_sent(47_000, world_size)
        times = f"{ours / bare:.2f} x the bare"
        print(f"47 000 means, {world_size} ranks: {ours} bytes a rank, {times}")


def main() -> None:
    """Measure, print the tables, write JSON."""
    ask = parser(__doc__)
    ask.add_argument("--names", nargs="+", type=int, default=[0, 1, 20, 200, 2000])
    ask.add_argument("--width", type=int, default=512)
    ask.add_argument("--rounds", type=int, default=20)
    args = ask.parse_args()
    per_rank = run(2, measured, args.names, args.width, args.rounds, backend="gloo")
    show(per_rank[0])
    write_json("log.json", summary(per_rank[0]))


if __name__ == "__main__":
    main()
