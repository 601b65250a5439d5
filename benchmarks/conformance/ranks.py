"""What runs in the processes: the single process, distmetrics on threads, and one rank of either library on gloo."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.conformance.case import Batch, Case, batches
from benchmarks.conformance.catalogue import find
from distmetrics import sync_and_compute
from distmetrics.testing import outcomes

__all__ = ["PLACE", "Ended", "by_distmetrics", "by_threads", "by_torchmetrics", "missing"]

_LONG = 200
PLACE = re.compile(r"\[/[^\]]*\] ?| ?\[[\d.:]+\]:\d+")  # gloo's source line and the peer's port: other ones each time


@dataclass(frozen=True)
class Ended:
    """How one rank ended: kind "value", "error", "abort" or "hang", and what there is to say."""

    kind: str
    value: Any = None
    text: str = ""


def by_threads(name: str, layout: str, world_size: int) -> tuple[Ended, list[Ended]]:
    """Return how the single process ended, and how each rank of a world of threads did."""
    case = find(name)
    metric = _filled(case, (batch for rank in range(world_size) for batch in batches(case, layout, world_size, rank)))
    try:
        single = Ended("value", metric.compute())
    except Exception as error:  # noqa: BLE001  (a metric may raise anything from compute; told to the caller)
        single = _raised(error)
    ended = outcomes(world_size, lambda comm: _synced(case, layout, comm.world_size, comm.rank), backend="threads")
    return single, [Ended("value", rank.value) if rank.error is None else _raised(rank.error) for rank in ended]


def by_distmetrics(name: str, layout: str) -> Ended:
    """Be one rank of an initialised process group: sync with distmetrics."""
    return _attempt(_synced, name, layout)


def by_torchmetrics(name: str, layout: str) -> Ended:
    """Be one rank of an initialised process group: let torchmetrics sync in compute, as it does unless told not to."""
    return _attempt(_computed, name, layout)


def _attempt(way: Any, name: str, layout: str) -> Ended:
    try:
        value = way(find(name), layout, torch.distributed.get_world_size(), torch.distributed.get_rank())
    except Exception as error:  # noqa: BLE001  (told to the caller)
        return _raised(error)
    return Ended("value", value)


def _synced(case: Case, layout: str, world_size: int, rank: int) -> Any:
    return sync_and_compute(_filled(case, batches(case, layout, world_size, rank)))


def _computed(case: Case, layout: str, world_size: int, rank: int) -> Any:
    return _filled(case, batches(case, layout, world_size, rank)).compute()


def _filled(case: Case, dealt: Iterable[Batch]) -> Any:
    warnings.simplefilter("ignore")  # most metrics warn of small or one-sided samples, which these are
    metric = case.make()
    for batch in dealt:
        metric.update(*batch.args, **batch.kwargs)
    return metric


def _raised(error: BaseException) -> Ended:
    first = PLACE.sub("", str(error).strip().partition("\n")[0])
    short = first if len(first) < _LONG else f"{first[:_LONG]}…"
    return Ended("error", text=f"{type(error).__name__}: {short}" if short else type(error).__name__)


def missing(name: str) -> str:
    """Return why the metric cannot be constructed, or ""; only a package that is not installed is a reason."""
    try:
        find(name).make()
    except ModuleNotFoundError as error:
        return str(error).partition("\n")[0]
    return ""
