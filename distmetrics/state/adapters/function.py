"""Our own metrics of plain functions."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from distmetrics.state.adapters.base import Adapter
from distmetrics.state.function import COUNT, SYNCED, FunctionMetric, weight_of
from distmetrics.state.spec import Kind, StateSpec, StateSpecs

_KINDS: dict[str, Kind] = {"sum": "sum", "max": "max", "min": "min", "cat": "cat"}


class FunctionAdapter(Adapter):
    """A mean is two sums; everything else is what it says."""

    marks: Mapping[str, Any] = {SYNCED: True}
    counter = COUNT
    flag = SYNCED

    def knows(self, value: Any) -> bool:
        """Whether :func:`~distmetrics.from_function` made it."""
        return isinstance(value, FunctionMetric)

    def specs(self, metric: FunctionMetric[Any]) -> StateSpecs:
        """Return the states in the order in which they were declared."""
        return _specs(tuple(metric.reduce.items()))

    def home(self, metric: FunctionMetric[Any]) -> dict[str, Any]:
        """Return what the metric holds."""
        return metric._held

    def updates(self, metric: FunctionMetric[Any]) -> int:
        """Return the count of updates."""
        return int(metric._held[COUNT])


ADAPTER = FunctionAdapter()


@functools.lru_cache(maxsize=256)
def _specs(reduce: tuple[tuple[str, str], ...]) -> StateSpecs:
    each: list[StateSpec] = []
    for name, reduction in reduce:
        if reduction == "mean":
            each += [StateSpec(name, "sum"), StateSpec(weight_of(name), "sum")]
        else:
            each.append(StateSpec(name, _KINDS[reduction]))
    return StateSpecs(
        tuple(each), (SYNCED, COUNT), ", ".join(f"{name} {reduction}" for name, reduction in reduce)
    )
