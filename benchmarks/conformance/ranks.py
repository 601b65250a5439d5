"""What runs in the processes: one process, threads with distmetrics, ranks on gloo."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.conformance.case import Case, batches
from benchmarks.conformance.catalogue import find
from distmetrics import sync_and_compute
from distmetrics.testing import outcomes

_LONG = 200
# Gloo's source line and the peer's port: other ones each time.
PLACE = re.compile(r"\[/[^\]]*\] ?| ?\[[\d.:]+\]:\d+")


@dataclass(frozen=True)
class Ended:
    """How one rank ended: kind "value", "error", "abort" or "hang", and what there is to say."""

    kind: str
    value: Any = None
    text: str = ""


def by_threads(name: str, layout: str, world_size: int, epochs: int) -> tuple[Ended, list[Ended]]:
    """Return how the single process ended, and how each rank of a world of threads did."""
    case = find(name)
    ways = case, layout, world_size
    try:
        single = Ended("value", _epochs(*ways, range(world_size), epochs, _computed))
    except Exception as error:  # noqa: BLE001  (a metric may raise anything; told to the caller)
        single = raised(error)

    def on_rank(comm: Any) -> Any:
        return _epochs(*ways, [comm.rank], epochs, sync_and_compute)

    ended = outcomes(world_size, on_rank, backend="threads")
    return single, [
        Ended("value", rank.value) if rank.error is None else raised(rank.error) for rank in ended
    ]


def by_distmetrics(name: str, layout: str, epochs: int) -> Ended:
    """Be one rank of an initialised process group: sync with distmetrics."""
    return _attempt(sync_and_compute, name, layout, epochs)


def by_torchmetrics(name: str, layout: str, epochs: int) -> Ended:
    """Be one rank of an initialised process group: torchmetrics syncs in compute."""
    return _attempt(_computed, name, layout, epochs)


def _computed(metric: Any) -> Any:
    return metric.compute()


def _attempt(value_of: Callable[[Any], Any], name: str, layout: str, epochs: int) -> Ended:
    world_size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    try:
        value = _epochs(find(name), layout, world_size, [rank], epochs, value_of)
    except Exception as error:  # noqa: BLE001  (told to the caller)
        return raised(error)
    return Ended("value", value)


def _epochs(
    case: Case,
    layout: str,
    world_size: int,
    ranks: Sequence[int],
    epochs: int,
    value_of: Callable[[Any], Any],
) -> Any:
    """Return the value of each epoch on these ranks' data, in a list if there are several.

    One metric is used for all, and reset between them. The second of more than two has its data
    dealt in another way, so that what was learned of the first is not enough.
    """
    warnings.simplefilter("ignore")  # most metrics warn of small or one-sided samples
    metric, values = case.make(), []
    for epoch in range(epochs):
        dealt = "batch counts" if epoch == 1 < epochs - 1 else layout
        if epoch:
            metric.reset()
        for rank in ranks:
            for batch in batches(case, dealt, world_size, rank, epoch):
                metric.update(*batch.args, **batch.kwargs)
        values.append(value_of(metric))
    return values if epochs > 1 else values[0]


def raised(error: BaseException) -> Ended:
    """Return how a rank ended that raised."""
    first = PLACE.sub("", str(error).strip().partition("\n")[0])
    short = first if len(first) < _LONG else f"{first[:_LONG]}…"
    kind = type(error).__name__
    return Ended("error", text=f"{kind}: {short}" if short else kind)


def missing(name: str) -> str:
    """Return why the metric cannot be constructed, or "": a package that is not installed."""
    try:
        find(name).make()
    except ModuleNotFoundError as error:
        return str(error).partition("\n")[0]
    return ""
