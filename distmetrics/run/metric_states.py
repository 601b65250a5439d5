"""A module's metric objects: where they are, and their states: saved, loaded and merged."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from distmetrics.comm.communicator import Communicator
from distmetrics.comm.threads import ThreadWorld
from distmetrics.metrics.adapters import MergingAdapter, targets
from distmetrics.metrics.adapters.base import adapter_of
from distmetrics.metrics.sync import synced
from distmetrics.tree import map_leaves

States = dict[str, dict[str, Any]]


def attributes_in(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield attributes and submodules by their paths, those of outer modules first.

    No property is asked.
    """
    for prefix, owner in module.named_modules():
        for name, value in {**vars(owner), **owner._modules}.items():
            yield f"{prefix}.{name}".lstrip("."), value


def metrics_in(module: nn.Module) -> dict[str, Any]:
    """Return the outermost metric objects of a module by path: children, and plain attributes."""
    metrics: dict[str, Any] = {}
    for path, value in attributes_in(module):
        is_metric = adapter_of(value) is not None
        if is_metric and not any(path.startswith(f"{outer}.") for outer in metrics):
            metrics[path] = value
    return metrics


def metric_states(metrics: Mapping[str, Any]) -> States:
    """Return a copy of the states of all metrics, on the CPU, by path and name."""
    states = {}
    for path, metric, adapter, specs, storage in targets(metrics):
        if isinstance(adapter, MergingAdapter):
            own = adapter.state(metric)
        else:
            names = {adapter.counter, *[spec.name for spec in specs]}
            own = {name: value for name, value in storage.items() if name in names}
            if "_computed" in storage:
                own["_computed"] = None  # it may be of an older state
        states[path] = _copy(own)
    return states


def load_states(metrics: Mapping[str, Any], saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Put back what :func:`metric_states` returned; a metric that it lacks stays as it is."""
    for target in targets(metrics):
        target.storage.update(_copy(saved.get(target.path, {}), target.device))


def merged(metrics: Mapping[str, Any], ranks: Sequence[States]) -> States:
    """Return the states of one process that has seen what all these ranks have."""
    if not metrics or len(ranks) == 1:
        return ranks[0]

    def merged_on_rank(comm: Communicator) -> States:
        mine = copy.deepcopy(metrics)
        load_states(mine, ranks[comm.rank])
        # Pickles would be our own, of this process.
        with synced(mine, allow_pickle=True, comm=comm, name="metric states of a checkpoint"):
            return metric_states(mine)

    states: States = ThreadWorld(len(ranks)).run(merged_on_rank)[0]
    return states


def _copy(value: Any, device: Any = "cpu") -> Any:
    """Return a copy of states whose tensors are on ``device``, and share no memory with these."""

    def copied(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, Tensor)
        return leaf.detach().to(device, copy=True) if is_tensor else copy.deepcopy(leaf)

    return map_leaves(copied, value)
