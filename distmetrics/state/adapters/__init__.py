"""Find the metrics in whatever a user hands over, and compute them in the same form."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from distmetrics.state.adapters.base import Adapter, Roster, Target
from distmetrics.state.adapters.merging import MergingAdapter
from distmetrics.state.adapters.registry import adapter_of, register_adapter
from distmetrics.state.spec import StateSpec, StateSpecs

__all__ = [
    "Adapter",
    "MergingAdapter",
    "StateSpec",
    "StateSpecs",
    "Target",
    "compute",
    "register_adapter",
    "roots",
    "targets",
]


def targets(metrics: Any) -> Sequence[Target]:
    """Return every metric with states of its own in ``metrics``, each once, in an order that all
    ranks share.
    """
    adapter = adapter_of(metrics)
    if adapter is None:
        found: Sequence[Target] = [
            t for path, root, how in roots(metrics) for t in how.targets(root, path)
        ]
    elif isinstance(found := adapter.targets(metrics, ""), Roster):
        return found
    once = {id(target.metric): target for target in reversed(found)}
    if len(once) == len(found) == len({target.path for target in found}):
        return found
    taken: set[str] = set()
    kept: list[Target] = []
    for target in found:
        if once[id(target.metric)] is target:
            kept.append(
                target
                if target.path not in taken
                else target._replace(path=_another(target.path, taken))
            )
            taken.add(kept[-1].path)
    return kept


def compute(metrics: Any) -> Any:
    """Compute every metric in ``metrics`` from the state that is in; the result has the form of the
    input.
    """
    adapter = adapter_of(metrics)
    if adapter is not None:
        return adapter.compute(metrics)
    if isinstance(metrics, Mapping | nn.ModuleDict):
        return {key: compute(value) for key, value in metrics.items()}
    if isinstance(metrics, Sequence | nn.ModuleList) and not isinstance(metrics, str | bytes):
        return [compute(value) for value in metrics]
    if isinstance(metrics, nn.Module):
        return {path: adapter.compute(root) for path, root, adapter in roots(metrics)}
    return metrics


def roots(metrics: Any, path: str = "") -> Iterator[tuple[str, Any, Adapter]]:
    """Yield the paths of the outermost metrics, the metrics, and who knows them."""
    adapter = adapter_of(metrics)
    if adapter is not None:
        yield path, metrics, adapter
    elif isinstance(metrics, Mapping):
        for key in sorted(
            metrics, key=lambda key: (str(key), type(key).__name__)
        ):  # ranks may have filled a dict in different order
            yield from roots(metrics[key], _join(path, key))
    elif isinstance(metrics, nn.Module):
        for name, child in metrics.named_children():
            yield from roots(child, _join(path, name))
    elif isinstance(metrics, Sequence) and not isinstance(metrics, str | bytes):
        for index, value in enumerate(metrics):
            yield from roots(value, _join(path, index))


def _join(path: str, step: object) -> str:
    return f"{path}.{step}" if path else str(step)


def _another(path: str, taken: set[str]) -> str:
    """Return a path of its own for a metric whose path reads like another's, as those of keys 1 and
    "1" do.
    """
    return next(
        other for number in itertools.count(2) if (other := f"{path} ({number})") not in taken
    )
