"""Show what a sync of metrics will do, before anything is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.exchange import inline_capacity
from distmetrics.comm.current import current
from distmetrics.errors import InputError, StateError
from distmetrics.state.adapters import targets
from distmetrics.state.cost import Cost, cost, cost_state_by_state
from distmetrics.state.describe import describe
from distmetrics.state.metric_set import MetricSet, communicator_of
from distmetrics.state.plan import SyncPlan, count_of, plan
from distmetrics.state.spec import FIXED


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one sync does and costs; ``print`` it.

    Attributes:
        plan: what is sent, and how it is combined.
        metrics: number of metrics with states.
        cost: collectives, and bytes that each rank receives.
        one_by_one: the same for torchmetrics' own sync, which gathers state by state.
        growing: paths of the states that grow with the data: their bytes are those of now.
    """

    plan: SyncPlan
    metrics: int
    cost: Cost
    one_by_one: Cost
    growing: tuple[str, ...]

    def __str__(self) -> str:
        metrics, ranks = count_of(self.metrics, "metric"), count_of(len(self.plan.sent), "rank")
        lines = [
            f"sync of {metrics} over {ranks}: {_text(self.cost)}",
            f"state by state, as torchmetrics does it: {_text(self.one_by_one)}",
            self.plan.describe(),
        ]
        if self.growing:
            shown = ", ".join(self.growing[:3]) + (", …" if len(self.growing) > 3 else "")
            lines.append(f"  what grows with the data is shown as it is now: {shown}")
        return "\n".join(lines)


def explain(metrics: Any, *, world_size: int | None = None) -> Explanation:
    """Return what :func:`sync_and_compute` would do with metrics, without a collective.

    Every rank is taken to hold what this one holds.

    Args:
        metrics: as for :func:`sync_and_compute`.
        world_size: default that of the communicator that a sync would use, or 2 where that is a
            world of one.

    Raises:
        StateError: ``metrics`` holds none.
        InputError: a world of fewer than two ranks syncs nothing.

    >>> from torchmetrics import MeanMetric
    >>> print(explain({"loss": MeanMetric()}, world_size=4))
    sync of 1 metric over 4 ranks: 1 collective, 96.0 KiB received by each rank
    state by state, as torchmetrics does it: 4 collectives, 24 bytes received by each rank
    2 states, 4 ranks, 1 collective
      sum   int64       1 tensors          8 bytes  in the first round
      sum   float32     2 tensors          8 bytes  in the first round
    """
    local = MetricSet(targets(metrics))
    if not local.targets:
        raise StateError(f"a {type(metrics).__name__} holds no metric that distmetrics knows")
    if world_size is None:
        world_size = max(2, communicator_of(local.targets, current()).world_size)
    if world_size < 2:
        raise InputError(
            f"explain: a world of {world_size} has nothing to sync", do="pass world_size=2 or more."
        )
    with torch.no_grad():
        local.updates = [1] * len(local.targets)  # as if each had been updated
        outgoing = describe(local, "", None)
    blobs = (outgoing.manifest.encode(),) * world_size
    sync_plan = plan(blobs, local.order, 0, inline_capacity(world_size))
    values = [local.value(place, spec) for _, place, spec in local.states]
    return Explanation(
        sync_plan,
        sum(bool(target.states) for target in local.targets),
        cost(sync_plan),
        cost_state_by_state([each for value in values for each in _gathered(value)], world_size),
        tuple(path for path, _, spec in local.states if spec.kind not in FIXED),
    )


def _gathered(value: Any) -> Iterator[tuple[int, int]]:
    """Yield what torchmetrics gathers of one state: a tensor, or what a list holds."""
    for x in value if isinstance(value, list) else [value]:
        if isinstance(x, Tensor):
            yield x.ndim, x.nbytes


def _text(cost: Cost) -> str:
    return f"{count_of(cost.rounds, 'collective')}, {_size(cost.received)} received by each rank"


def _size(nbytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
