"""The states of a module's metric objects: taken, put back, and dealt out to another number of
ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from distmetrics.comm.threads import ThreadWorld
from distmetrics.state.adapters import MergingAdapter, Target, targets
from distmetrics.state.adapters.registry import adapter_of
from distmetrics.state.sync import synced

States = dict[str, dict[str, Any]]


def metrics_in(module: nn.Module) -> dict[str, Any]:
    """Return the outermost metric objects of a module by path: children, and plain attributes."""
    found: dict[str, Any] = {}
    for prefix, owner in module.named_modules():
        if adapter_of(owner) is not None:
            found.setdefault(prefix, owner)
            continue
        for name, value in vars(owner).items():
            if not name.startswith("_") and adapter_of(value) is not None:
                found[f"{prefix}.{name}".lstrip(".")] = value
    inner = {path for path in found for outer in found if path.startswith(f"{outer}.")}
    return {path: metric for path, metric in found.items() if path not in inner}


def updated(metrics: Mapping[str, Any]) -> dict[str, int]:
    """Return how often each of these metrics was updated since it was reset, if it was, and says
    so.
    """
    counts = {path: sum(map(_updates, _parts(metric))) for path, metric in metrics.items()}
    return {path: count for path, count in counts.items() if count}


def _parts(metric: Any) -> Iterable[Any]:
    return metric.modules() if isinstance(metric, nn.Module) else [metric]


def _updates(metric: Any) -> int:
    adapter = adapter_of(metric)
    return (
        0
        if adapter is None or not adapter.counter
        else int(adapter.storage(metric).get(adapter.counter, 0))
    )


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
                target.storage[name] = value


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
    names = tuple(spec.name for spec in target.states)
    if target.adapter.counter and target.adapter.counter in target.storage:
        names = (*names, target.adapter.counter)
    found = {name: target.storage[name] for name in names}
    return found | ({"_computed": None} if "_computed" in target.storage else {})


def _copy(value: Any, device: Any = "cpu") -> Any:
    if isinstance(value, Tensor):
        moved = value.detach().to(device)
        return moved.clone() if moved is value or moved.data_ptr() == value.data_ptr() else moved
    if isinstance(value, list):
        return [_copy(item, device) for item in value]
    return copy.deepcopy(value)
