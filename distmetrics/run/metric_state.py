"""A module's metric objects: where they are, their values, and their states: saved and merged."""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from distmetrics.comm.communicator import Communicator
from distmetrics.comm.threads import ThreadWorld
from distmetrics.errors import ConfigurationError
from distmetrics.message import reading
from distmetrics.metrics.adapters import MergingAdapter, Target, targets
from distmetrics.metrics.adapters.base import adapter_of
from distmetrics.metrics.sync import sync_and_compute, synced
from distmetrics.run.entries import Key, Kind
from distmetrics.run.log_options import as_number
from distmetrics.tree import map_leaves

States = dict[str, dict[str, Any]]


def metrics_in(module: nn.Module) -> dict[str, Any]:
    """Return the outermost metric objects of a module by path: children, and plain attributes."""
    metrics: dict[str, Any] = {}
    for prefix, owner in module.named_modules():
        if any(prefix.startswith(f"{outer}.") for outer in metrics):
            continue
        if adapter_of(owner) is not None:
            metrics[prefix] = owner
            continue
        for name, value in vars(owner).items():
            if not name.startswith("_") and adapter_of(value) is not None:
                metrics[f"{prefix}.{name}".lstrip(".")] = value
    return metrics


def metric_at(module: nn.Module, path: str) -> Any:
    """Return the object at a dotted path of attributes and submodules.

    No property is asked, for the path may be a peer's.

    Raises:
        KeyError: there is none.
    """
    value: Any = module
    for name in path.split("."):
        value = {**vars(value), **value._modules}[name]
    return value


def path_of(module: nn.Module, metric: Any, name: str) -> str:
    """Return the attribute path of a metric object that is logged as ``name``.

    Raises:
        ConfigurationError: the module does not hold it.
    """
    for prefix, owner in module.named_modules():
        attributes = {**vars(owner), **dict(owner.named_children())}
        for attribute, value in attributes.items():
            if value is metric:
                return f"{prefix}.{attribute}".lstrip(".")
    raise ConfigurationError(
        f"the metric object logged as {name!r} is no attribute of the module: a rank without "
        "batches could not find it",
        do="assign it in __init__: self.some_name = metric; several go into an nn.ModuleDict.",
    )


def updated(metrics: Mapping[str, Any]) -> dict[str, int]:
    """Return the updates of each metric since its reset, if there were any and it counts them."""
    counts = Counter[str]()
    for path, metric in metrics.items():
        for target in targets({path: metric}):
            counts[path] += int(target.storage.get(target.adapter.counter, 0))
    return +counts


def check_unused(path: str, updates: Mapping[str, int], stage: str, name: str) -> None:
    """Refuse a metric object, logged as ``name``, with updates from before this stage.

    Args:
        path: of the metric object.
        updates: those from before the stage, of each metric that had any.
        stage: "this validation", say.
        name: of the value.
    """
    for outer, count in updates.items():
        if f"{path}.".startswith(f"{outer}."):
            raise ConfigurationError(
                f"self.{path} holds {count} updates from before {stage}: their samples would "
                f"count in {name!r}",
                likely="one metric object for training and for evaluation.",
                do="keep one for each, or call its reset() before.",
            )


def metric_values(
    module: nn.Module,
    kinds: Mapping[Key, Kind],
    comm: Communicator,
    name: str,
    *,
    allow_pickle: bool,
) -> dict[Key, float]:
    """Return each number of the metric objects that were logged, over all ranks; reset these.

    Args:
        module: which holds them.
        kinds: how each name of one was logged.
        comm: who syncs, all objects at once.
        name: of the sync, for errors.
        allow_pickle: see :func:`~distmetrics.sync_and_compute`.

    Raises:
        ConfigurationError: a metric object has been logged for two loaders.
    """
    loaders: dict[str, int] = {}
    for key, kind in kinds.items():
        if loaders.setdefault(kind.metric, key.loader) != key.loader:
            raise ConfigurationError(
                f"the metric self.{kind.metric} is logged for several loaders, whose samples it "
                "would mix",
                do="keep one metric object a loader, in an nn.ModuleList.",
            )
    with reading("names of metric objects"):
        metrics = {path: metric_at(module, path) for path in sorted(loaders)}
    computed = sync_and_compute(metrics, allow_pickle=allow_pickle, comm=comm, name=name)
    for metric in metrics.values():
        metric.reset()
    numbers = {}
    for key, kind in kinds.items():
        value = computed[kind.metric]
        if isinstance(value, Mapping):
            for inner, part in value.items():
                label = str(inner) if kind.bare else f"{key.name}/{inner}"
                numbers[Key(label, key.loader)] = float(as_number(f"{kind.metric}.{inner}", part))
        else:
            numbers[key] = float(as_number(f"self.{kind.metric}", value))
    return numbers


def metric_states(metrics: Mapping[str, Any]) -> States:
    """Return a copy of the states of all metrics, on the CPU, by path and name."""
    return {target.path: _copy(_states_of(target)) for target in _targets(metrics)}


def load_states(metrics: Mapping[str, Any], saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Put back what :func:`metric_states` returned; a metric that it lacks stays as it is."""
    for target in _targets(metrics):
        states = _copy(saved.get(target.path, {}), target.device)
        if isinstance(target.adapter, MergingAdapter):
            vars(target.metric).update(states)
        else:
            target.storage.update(states)


def merged(metrics: Mapping[str, Any], ranks: Sequence[States]) -> States:
    """Return the states of one process that has seen what all these ranks have."""
    if not metrics or len(ranks) == 1:
        return dict(ranks[0])
    copies = [copy.deepcopy(dict(metrics)) for _ in ranks]

    def merged_on_rank(comm: Communicator) -> States:
        mine = copies[comm.rank]
        load_states(mine, ranks[comm.rank])
        name = "metric states of a checkpoint"
        with synced(mine, allow_pickle=True, comm=comm, name=name):  # our own, of this process
            return metric_states(mine)

    states: States = ThreadWorld(len(ranks)).run(merged_on_rank)[0]
    return states


def _targets(metrics: Mapping[str, Any]) -> Sequence[Target]:
    return targets(dict(metrics)) if metrics else ()


def _states_of(target: Target) -> dict[str, Any]:
    """Return a metric's states and its number of updates; no value computed of an older state."""
    if isinstance(target.adapter, MergingAdapter):
        return target.adapter.state(target.metric)
    names = [spec.name for spec in target.states]
    names.append(target.adapter.counter)
    states = {name: target.storage[name] for name in names if name in target.storage}
    if "_computed" in target.storage:
        states["_computed"] = None
    return states


def _copy(value: Any, device: Any = "cpu") -> Any:
    """Return a copy of states whose tensors are on ``device``, and share no memory with these."""

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().to(device, copy=True)
        return copy.deepcopy(leaf)

    return map_leaves(copied, value)
