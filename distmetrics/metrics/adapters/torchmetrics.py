"""torchmetrics: metrics, collections, and wrappers, whose children hold the states."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection, MetricTracker
from torchmetrics.utilities import (
    dim_zero_cat,
    dim_zero_max,
    dim_zero_mean,
    dim_zero_min,
    dim_zero_sum,
)

from distmetrics.errors import StateError
from distmetrics.metrics.adapters.base import Adapter, Kind, StateSpec, Target, are_equal

_KINDS: dict[Any, Kind] = {
    dim_zero_sum: "sum", dim_zero_mean: "mean", dim_zero_max: "max", dim_zero_min: "min",
}  # fmt: skip
# Arguments of torchmetrics' own that may well differ between ranks: where things are, how fast they
# are done, what is checked and printed. Those of the base class are not arguments here anyway.
_OF_THE_RANK = frozenset((
    "baseline_path", "baseline_url", "batch_size", "embedding_device", "model_name_or_path",
    "n_processes", "num_threads", "validate_args", "verbose",
))  # fmt: skip


class TorchmetricsAdapter(Adapter):
    """Reads ``Metric._reductions``, which says of each state how it is reduced."""

    # What computing must see: a synced metric that will neither sync again nor un-sync itself.
    synced_flags: Mapping[str, Any] = {
        "_computed": None,
        "_to_sync": False,
        "_should_unsync": False,
        "_is_synced": True,
    }
    counter = "_update_count"
    flag = "_is_synced"
    group = "process_group"

    def knows(self, value: Any) -> bool:
        """Return True for a metric, a collection or a tracker."""
        return isinstance(value, Metric | MetricCollection | MetricTracker)

    def targets(self, metric: nn.Module, path: str) -> list[Target]:
        """Return every metric in it, itself included, in the order of their definition."""
        found = []  # not by named_modules: it hashes modules, and a metric's hash reads its state
        if isinstance(metric, MetricCollection):
            _share_in_groups(metric)
            found.append(Target.of(path, metric, _COLLECTIONS))
        elif isinstance(metric, Metric):
            found.append(Target.of(path, metric, self))
        for name, child in metric._modules.items():
            if child is not None:
                found += self.targets(child, f"{path}.{name}" if path else name)
        return found

    def states(self, metric: Metric) -> Sequence[StateSpec]:
        """Return the states in the order of their ``add_state`` calls; not those of a child."""
        if _holder(metric) is not metric:
            return ()
        states = [
            (name, reduction, getattr(metric._defaults.get(name), "shape", None))
            for name, reduction in metric._reductions.items()
        ]
        return _specs(type(metric), *states)

    def updates(self, metric: Metric) -> int:
        """Return 1 for state that was loaded, not updated, else 0."""
        held = [getattr(metric, name) for name in metric._defaults]
        return 0 if are_equal(held, [*metric._defaults.values()]) else 1

    def arguments(self, metric: Metric) -> dict[str, str]:
        """Return the plain public attributes: macro and micro F1 scores have the same states."""
        kind, held = type(metric), vars(metric)
        if not _is_of_torchmetrics(kind):  # others may differ between ranks for reasons of theirs
            return {}
        return {
            name: repr(held[name])
            for name in _own_names(kind, tuple(held))
            if type(held[name]) in (bool, int, float, str)
            if name[0] != "_" and name not in metric._defaults
        }

    def attributes(self, metric: Metric) -> dict[str, Any]:
        """Return what is neither a state nor of the base class; modules and parameters too."""
        values, states = vars(metric), metric._defaults
        names = _own_names(type(metric), tuple(values))
        attributes = {name: values[name] for name in names if name not in states}
        return {**attributes, **metric._modules, **metric._parameters}


class CollectionAdapter(Adapter):
    """Suspends the compute groups of a collection while the global state is in.

    Groups are formed from the first batch that a rank saw, so ranks may have formed different ones;
    a group that is right for local state would overwrite global state.
    """

    synced_flags: Mapping[str, Any] = {"_groups": {}, "_state_is_copy": False}

    def knows(self, value: Any) -> bool:
        """Return True for a collection."""
        return isinstance(value, MetricCollection)

    def states(self, metric: MetricCollection) -> tuple[StateSpec, ...]:
        """Return nothing: a collection has no state of its own."""
        return ()

    def groups(self, metric: MetricCollection) -> list[list[Metric]]:
        """Return the compute groups; nothing before the first update, which forms them."""
        if not metric._groups_checked:  # the public groups are one for each metric then
            return []
        groups = metric.compute_groups.values()
        return [[_holder(metric._modules[name]) for name in group] for group in groups]


ADAPTER = TorchmetricsAdapter()
_COLLECTIONS = CollectionAdapter()


class _Bare(Metric):
    """A metric with nothing of its own."""

    def update(self) -> None:
        """Do nothing."""

    def compute(self) -> None:
        """Do nothing."""


@functools.lru_cache(maxsize=1024)
def _own_names(kind: type[Metric], names: tuple[str, ...]) -> list[str]:
    """Return what a metric's class has added, in order, without what each rank may choose."""
    others = {*vars(_Bare()), *_unregistered(kind)}
    if _is_of_torchmetrics(kind):
        others |= _OF_THE_RANK
    return sorted({*names} - others)


def _is_of_torchmetrics(kind: type[Metric]) -> bool:
    return kind.__module__.startswith("torchmetrics.")


def _share_in_groups(collection: MetricCollection) -> None:
    """Give the members of a compute group the state of its first, which alone is updated."""
    # The collection's own method costs more than the rest of a sync.
    if collection._state_is_copy:  # the members' states are their own, since someone looked at them
        return
    for first, *others in _COLLECTIONS.groups(collection):
        names = (*first._defaults, TorchmetricsAdapter.counter)
        shared = {name: vars(first)[name] for name in names}
        for other in others:
            vars(other).update(shared)


def _holder(metric: Metric) -> Metric:
    """Return the metric that holds the states of ``metric``: itself, or a wrapper's child."""
    missing = metric._reductions.keys() - vars(metric).keys()
    if not missing:
        return metric
    for child in metric._modules.values():
        if isinstance(child, Metric) and child._reductions is metric._reductions:
            return _holder(child)
    raise StateError(
        f"the state {min(missing)} of {type(metric).__name__} is no plain attribute, but a "
        "parameter or a buffer",
        do="assign a tensor, such as x.detach(), under the name that was given to add_state.",
    )


def _unregistered(kind: type[Metric]) -> list[str]:
    return [name for base in kind.__mro__ for name in _UNREGISTERED.get(base.__name__, ())]


@functools.lru_cache(maxsize=1024)
def _specs(
    kind: type[Metric], *states: tuple[str, Any, tuple[int, ...] | None]
) -> tuple[StateSpec, ...]:
    """Describe states by name, reduction and their default's shape, which is None for a list."""
    specs = []
    for name, registered, shape in states:
        reduction = _FAULTS.get((kind.__name__, name), registered)
        if reduction is dim_zero_cat:
            specs.append(StateSpec(name, "cat"))
        elif shape is None:
            specs.append(StateSpec(name, "items", reduction))
        elif reduction in _KINDS:
            specs.append(StateSpec(name, _KINDS[reduction], shape=tuple(shape)))
        else:
            specs.append(StateSpec(name, "stack", reduction, tuple(shape)))
    return (*specs, *[StateSpec(name, "sum") for name in _unregistered(kind)])


def _at_most_two(rows: Tensor) -> Tensor:
    """Refuse what NormalizedRootMeanSquaredError would get wrong; two ranks are merged right."""
    if len(rows) > 2:
        raise StateError(
            f"NormalizedRootMeanSquaredError cannot merge the data of {len(rows)} ranks: in "
            "torchmetrics its _final_aggregation overwrites the totals that it iterates over, and "
            "then fails or is wrong",
            do="use MeanSquaredError(squared=False), and normalize by a MeanMetric, MaxMetric or "
            "MinMetric of the target.",
        )
    return rows


# Faults of torchmetrics' own classes: a reduction that is wrong for more than two ranks, and a sum
# over all images that was never registered as a state.
_FAULTS: Mapping[tuple[str, str], Any] = {("NormalizedRootMeanSquaredError", "total"): _at_most_two}
_UNREGISTERED = {"RootMeanSquaredErrorUsingSlidingWindow": ["rmse_map"]}
