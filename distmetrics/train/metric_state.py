"""A module's metric objects: where they are, and their states, taken, put back and merged."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from distmetrics.comm.threads import ThreadWorld
from distmetrics.errors import ConfigurationError
from distmetrics.state.adapters import MergingAdapter, Target, targets
from distmetrics.state.adapters.registry import adapter_of
from distmetrics.state.sync import synced

States = dict[str, dict[str, Any]]


def metrics_in(module: nn.Module) -> dict[str, Any]:
    """Return the outermost metric objects of a module by path: children, and plain attributes."""
    metrics: dict[str, Any] = {}
    for prefix, owner in module.named_modules():
        if adapter_of(owner) is not None:
            metrics.setdefault(prefix, owner)
            continue
        for name, value in vars(owner).items():
            if not name.startswith("_") and adapter_of(value) is not None:
                metrics[f"{prefix}.{name}".lstrip(".")] = value
    inner = {path for path in metrics for outer in metrics if path.startswith(f"{outer}.")}
    return {path: metric for path, metric in metrics.items() if path not in inner}


def metric_at(module: nn.Module, path: str) -> Any:
    """Return the object at a dotted attribute path of the module."""
    return functools.reduce(getattr, path.split("."), module)


def path_of(module: nn.Module, metric: Any, name: str) -> str:
    """Return the attribute path of a metric object that is logged as ``name``.

    Raises:
        ConfigurationError: the module does not hold it.
    """
    for prefix, owner in module.named_modules():
        for attribute, value in (*owner.named_children(), *vars(owner).items()):
            if value is metric:
                return f"{prefix}.{attribute}".lstrip(".")
    raise ConfigurationError(
        f"the metric object logged as {name!r} is no attribute of the module: a rank without "
        "batches could not find it",
        do="assign it in __init__: self.some_name = metric; several go into an nn.ModuleDict.",
    )


def updated(metrics: Mapping[str, Any]) -> dict[str, int]:
    """Return how often each of these metrics was updated since its reset, if it was and counts it."""
    counts = {
        path: sum(
            int(target.home.get(target.adapter.counter, 0))
            for target in targets({path: metric})
            if target.adapter.counter
        )
        for path, metric in metrics.items()
    }
    return {path: count for path, count in counts.items() if count}


def metric_states(metrics: Mapping[str, Any]) -> States:
    """Return a copy of the states of all metrics, on the CPU, by path and name."""
    return {
        target.path: {name: _copy(value) for name, value in _read(target).items()}
        for target in _targets(metrics)
    }


def load_states(metrics: Mapping[str, Any], saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Put back what :func:`metric_states` returned; metrics that it does not name stay as they are."""
    for target in _targets(metrics):
        state = {
            name: _copy(value, target.device) for name, value in saved.get(target.path, {}).items()
        }
        if isinstance(target.adapter, MergingAdapter):
            vars(target.metric).update(state)
        else:
            for name, value in state.items():
                target.home[name] = value


def merged(metrics: Mapping[str, Any], ranks: Sequence[States]) -> States:
    """Return the states of one process that has seen what all these ranks have."""
    if not metrics or len(ranks) == 1:
        return dict(ranks[0])
    copies = [copy.deepcopy(dict(metrics)) for _ in ranks]

    def one(comm: Any) -> States:
        mine = copies[comm.rank]
        load_states(mine, ranks[comm.rank])
        with synced(mine, comm=comm, name="metric states of a checkpoint"):
            return metric_states(mine)

    found: States = ThreadWorld(len(ranks)).run(one)[0]
    return found


def _targets(metrics: Mapping[str, Any]) -> Sequence[Target]:
    return targets(dict(metrics)) if metrics else ()


def _read(target: Target) -> dict[str, Any]:
    if isinstance(target.adapter, MergingAdapter):
        return target.adapter.state(target.metric)
    names = target.specs.names
    if target.adapter.counter and target.adapter.counter in target.home:
        names = (*names, target.adapter.counter)
    found = {name: target.home[name] for name in names}
    return found | ({"_computed": None} if "_computed" in target.home else {})


def _copy(value: Any, device: Any = "cpu") -> Any:
    if isinstance(value, Tensor):
        moved = value.detach().to(device)
        return moved.clone() if moved is value or moved.data_ptr() == value.data_ptr() else moved
    if isinstance(value, list):
        return [_copy(item, device) for item in value]
    return copy.deepcopy(value)
