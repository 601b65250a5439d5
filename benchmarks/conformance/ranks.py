"""What runs in the processes: one process, threads with distmetrics, ranks on gloo."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from benchmarks.conformance.case import batches
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


def by_threads(name: str, layout: str, world_size: int) -> tuple[Ended, list[Ended]]:
    """Return how the single process ended, and how each rank of a world of threads did."""
    single = _attempt(_computed, name, layout, world_size, range(world_size))

    def on_rank(comm: Any) -> Any:
        return _value(sync_and_compute, name, layout, world_size, [comm.rank])

    ended = outcomes(world_size, on_rank, backend="threads")
    return single, [
        Ended("value", rank.value) if rank.error is None else raised(rank.error) for rank in ended
    ]


def by_distmetrics(name: str, layout: str) -> Ended:
    """Be one rank of an initialised process group: sync with distmetrics."""
    return _attempt(sync_and_compute, name, layout, dist.get_world_size(), [dist.get_rank()])


def by_torchmetrics(name: str, layout: str) -> Ended:
    """Be one rank of an initialised process group: torchmetrics syncs in compute."""
    return _attempt(_computed, name, layout, dist.get_world_size(), [dist.get_rank()])


def _computed(metric: Any) -> Any:
    return metric.compute()


def _attempt(*asked: Any) -> Ended:
    try:
        return Ended("value", _value(*asked))
    except Exception as error:  # noqa: BLE001  (a metric may raise anything; told to the caller)
        return raised(error)


def _value(
    value_of: Callable[[Any], Any], name: str, layout: str, world_size: int, ranks: Sequence[int]
) -> Any:
    """Return the value of a metric that has these ranks' data."""
    warnings.simplefilter("ignore")  # most metrics warn of small or one-sided samples
    case = find(name)
    metric = case.make()
    for rank in ranks:
        for batch in batches(case, layout, world_size, rank):
            metric.update(*batch.args, **batch.kwargs)
    return value_of(metric)


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
