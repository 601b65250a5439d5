"""Our own metrics of plain functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distmetrics.metrics.adapters.base import Adapter, StateSpec
from distmetrics.metrics.function import COUNT, SYNCED, FunctionMetric


class FunctionAdapter(Adapter):
    """Reads what a metric holds."""

    synced_flags: Mapping[str, Any] = {SYNCED: True}
    counter = COUNT
    flag = SYNCED

    def knows(self, value: Any) -> bool:
        """Return True if :func:`~distmetrics.from_function` made it."""
        return isinstance(value, FunctionMetric)

    def states(self, metric: FunctionMetric[Any]) -> list[StateSpec]:
        """Return the states in the order in which they were declared."""
        return [StateSpec(name, op) for name, op in metric._states.items()]

    def storage(self, metric: FunctionMetric[Any]) -> dict[str, Any]:
        """Return what the metric holds."""
        return metric._held

    def updates(self, metric: FunctionMetric[Any]) -> int:
        """Return the count of updates."""
        return int(metric._held[COUNT])


ADAPTER = FunctionAdapter()
