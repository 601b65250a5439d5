"""Find the metrics in whatever a user hands over, and the adapters that know them."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from torch import Tensor, nn

from distmetrics.errors import ConfigurationError, StateError
from distmetrics.metrics.adapters.base import Adapter, Target

GROUP = "distmetrics.adapters"  # of entry points
# The adapter of a library that nobody has imported, which imports it, need not be asked.
_BUILT_IN = {
    "torchmetrics": "distmetrics.metrics.adapters.torchmetrics",
    "torcheval.metrics": "distmetrics.metrics.adapters.torcheval",
    "distmetrics.metrics.function": "distmetrics.metrics.adapters.function",
}
_NO_METRICS = frozenset({dict, list, tuple, str, bytes, bool, int, float, type(None), Tensor})
_NO_METRICS_EITHER = frozenset({nn.Module, nn.ModuleDict, nn.ModuleList, nn.Sequential, nn.Linear})

_registered: list[Adapter] = []


def register_adapter(adapter: Adapter) -> None:
    """Make the metrics that ``adapter`` knows known to :func:`sync_and_compute` and :func:`synced`.

    An adapter that is registered is asked before those built in and those found by entry points,
    the latest first; so it may also replace one of them. Registering it again changes nothing.
    Every rank must register the same.

    Args:
        adapter: an instance of a subclass of :class:`~distmetrics.metrics.adapters.Adapter`.

    Raises:
        ConfigurationError: it is none.

    >>> register_adapter("my_library")
    Traceback (most recent call last):
    distmetrics.errors.ConfigurationError: register_adapter: 'my_library' is no instance of an
    Adapter
    Do:     pass an instance of a subclass of distmetrics.metrics.adapters.Adapter.
    """
    if not isinstance(adapter, Adapter):
        raise ConfigurationError(
            f"register_adapter: {adapter!r} is no instance of an Adapter",
            do="pass an instance of a subclass of distmetrics.metrics.adapters.Adapter.",
        )
    if adapter not in _registered:
        _registered.insert(0, adapter)


def adapter_of(value: Any) -> Adapter | None:
    """Return the adapter that knows ``value``, None where none does.

    Raises:
        StateError: an entry point that might know it cannot be loaded.
    """
    if type(value) in _NO_METRICS:
        return None
    return next((adapter for adapter in _adapters(type(value)) if adapter.knows(value)), None)


def _adapters(kind: type) -> Iterator[Adapter]:
    yield from _registered
    for library, module in _BUILT_IN.items():
        if library in sys.modules:
            yield _built_in(module)
    if kind not in _NO_METRICS_EITHER:  # which are none, unless an adapter was registered for them
        yield from installed()


@functools.cache
def _built_in(module: str) -> Adapter:
    adapter: Adapter = importlib.import_module(module).ADAPTER
    return adapter


@functools.cache
def installed() -> list[Adapter]:
    """Load the adapters of installed distributions, once; an error is raised at each try."""
    points = metadata.entry_points(group=GROUP)
    return [_load(point) for point in sorted(points, key=lambda each: (each.name, each.value))]


def _load(point: metadata.EntryPoint) -> Adapter:
    whose = "of no known distribution"
    if point.dist:
        whose = f"of the distribution {point.dist.name} {point.dist.version}"
    what = f'the entry point {point.name} = "{point.value}" {whose}, in group {GROUP},'
    try:
        loaded = point.load()
        adapter = loaded() if isinstance(loaded, type) else loaded
    except Exception as error:
        raise StateError(
            f"{what} cannot be loaded: {type(error).__name__}: {error}",
            do="update or uninstall that distribution.",
        ) from error
    if not isinstance(adapter, Adapter):
        raise StateError(
            f"{what} is a {type(adapter).__name__} and no Adapter",
            do="let it name a subclass of distmetrics.metrics.adapters.Adapter, or an instance of "
            "one.",
        )
    return adapter


def targets(metrics: Any) -> list[Target]:
    """Return every metric with states of its own in ``metrics``, each once.

    In an order that all ranks share; a metric that is found under several paths has the first.
    """
    result: dict[str, Target] = {}  # by path
    seen: set[int] = set()
    for path, root, adapter in roots(metrics):
        for target in adapter.targets(root, path):
            if id(target.metric) not in seen:
                seen.add(id(target.metric))
                # The paths of the keys 1 and "1" are the same.
                name, number = target.path, 1
                while name in result:
                    number += 1
                    name = f"{target.path} ({number})"
                result[name] = target._replace(path=name)
    return [*result.values()]


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
    children: Iterable[tuple[Any, Any]] = ()
    adapter = adapter_of(metrics)
    if adapter is not None:
        yield path, metrics, adapter
    elif isinstance(metrics, Mapping):
        # Ranks may have filled a dict in different order.
        keys = sorted(metrics, key=lambda key: (str(key), type(key).__name__))
        children = ((key, metrics[key]) for key in keys)
    elif isinstance(metrics, nn.Module):
        children = metrics.named_children()
    elif isinstance(metrics, Sequence) and not isinstance(metrics, str | bytes):
        children = enumerate(metrics)
    for step, child in children:
        yield from roots(child, f"{path}.{step}" if path else str(step))
