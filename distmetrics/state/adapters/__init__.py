"""Find the metrics in whatever a user hands over, and compute them in the same form."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from distmetrics.state.adapters.base import Adapter, Target
from distmetrics.state.adapters.merging import MergingAdapter
from distmetrics.state.adapters.registry import adapter_of, register_adapter
from distmetrics.state.spec import StateSpec

__all__ = [
    "Adapter",
    "MergingAdapter",
    "StateSpec",
    "Target",
    "compute",
    "register_adapter",
    "roots",
    "targets",
]


def targets(metrics: Any) -> list[Target]:
    """Return every metric with states of its own in ``metrics``, each once.

    In an order that all ranks share; a metric that is found under several paths has the first.
    """
    found: list[Target] = []
    seen: set[int] = set()
    paths: set[str] = set()
    for path, root, adapter in roots(metrics):
        for target in adapter.targets(root, path):
            if id(target.metric) not in seen:
                found.append(target._replace(path=_another(target.path, paths)))
                seen.add(id(target.metric))
                paths.add(found[-1].path)
    return found


def compute(metrics: Any) -> Any:
    """Compute every metric in ``metrics`` from the state that is in, in the form of the input."""
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
        # Ranks may have filled a dict in different order.
        for key in sorted(metrics, key=lambda key: (str(key), type(key).__name__)):
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
    """Return ``path``, numbered if it is taken, as the paths of the keys 1 and "1" are the same."""
    if path not in taken:
        return path
    names = (f"{path} ({number})" for number in itertools.count(2))
    return next(name for name in names if name not in taken)
