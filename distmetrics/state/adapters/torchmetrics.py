"""torchmetrics: metrics, collections, and wrappers, whose children hold the states."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection, MetricTracker

from distmetrics.errors import StateError
from distmetrics.state.adapters.base import Adapter, Roster, Target
from distmetrics.state.adapters.torchmetrics_specs import COUNTER, KEPT, SYNCED, specs_of
from distmetrics.state.spec import StateSpecs

_KNOWN = (Metric, MetricCollection, MetricTracker)


class _AnyAdapter(Adapter):
    """What metrics, wrappers and collections have in common."""

    def knows(self, value: Any) -> bool:
        """Whether it is a metric, a collection or a tracker."""
        return isinstance(value, _KNOWN)

    def targets(self, metric: nn.Module, path: str) -> Sequence[Target]:
        """Return the metrics in it, itself included."""
        return (
            _members(metric, path)
            if isinstance(metric, MetricCollection)
            else metrics_of(metric, path)
        )


class TorchmetricsAdapter(_AnyAdapter):
    """Reads ``Metric._reductions``, which says of each state how it is reduced."""

    marks: Mapping[str, Any] = SYNCED
    counter = COUNTER
    flag = "_is_synced"
    group = "process_group"

    def specs(self, metric: Metric) -> StateSpecs:
        """Return the states in the order of their ``add_state`` calls."""
        return specs_of(metric)

    def home(self, metric: Metric) -> dict[str, Any]:
        """States are plain attributes."""
        return metric.__dict__

    def updates(self, metric: Metric) -> int:
        """Return the update count; state that was loaded rather than updated counts as one update."""
        if metric._update_count:
            return int(metric._update_count)
        return 0 if all(_is_default(metric, name) for name in metric._defaults) else 1


class DelegatingAdapter(TorchmetricsAdapter):
    """A wrapper that shows its child's states as its own, as ``ClasswiseWrapper`` does: only the
    child holds them.
    """

    def specs(self, metric: Metric) -> StateSpecs:
        """They are the child's."""
        return _NO_STATE

    def updates(self, metric: Metric) -> int:
        """Return the update count."""
        return int(metric._update_count)


class CollectionAdapter(_AnyAdapter):
    """Suspends the compute groups of a collection while the global state is in.

    Groups are formed from the first batch that a rank saw, so ranks may have formed different ones;
    a group that is right for local state would overwrite global state.
    """

    marks: Mapping[str, Any] = {"_groups": {}, "_state_is_copy": False}

    def specs(self, metric: MetricCollection) -> StateSpecs:
        """A collection has no state of its own."""
        return _GROUPS_ONLY

    def home(self, metric: MetricCollection) -> dict[str, Any]:
        """Groups are plain attributes."""
        return metric.__dict__

    def updates(self, metric: MetricCollection) -> int:
        """A collection has no state of its own."""
        return 0


_NO_STATE = StateSpecs((), KEPT)
_GROUPS_ONLY = StateSpecs((), tuple(CollectionAdapter.marks))
ADAPTER = _METRICS = TorchmetricsAdapter()
_DELEGATING, _COLLECTIONS = DelegatingAdapter(), CollectionAdapter()


def metrics_of(root: nn.Module, path: str) -> list[Target]:
    """Find every metric below ``root``, itself included: wrappers' children too.

    Not by ``named_modules``: it hashes modules, and a metric's hash reads all of its state.
    """
    found: list[Target] = []
    _collect(root, path, found)
    return found


class _Known(NamedTuple):
    """The metrics of a collection as they were found, and what must be unchanged for them to be
    those still.
    """

    collection: weakref.ref[MetricCollection]
    path: str
    reductions: list[dict[str, Any]]
    states: list[int]
    members: list[Metric]
    metrics: list[Target]
    kept: dict[str, Any]

    def holds(self, collection: MetricCollection, path: str) -> bool:
        """Whether the collection has the same members, and they have the same number of states."""
        modules = collection._modules.values()
        return (
            self.collection() is collection
            and self.path == path
            and len(self.members) == len(modules)
            and all(map(operator.is_, self.members, modules))
            and self.states == list(map(len, self.reductions))
        )


_known: dict[int, _Known] = {}


def _members(collection: MetricCollection, path: str) -> Sequence[Target]:
    """Find the metrics of a collection, which is the same work at every sync: remembered while
    nothing changes.
    """
    _share_in_groups(collection)
    key = id(collection)
    known = _known.get(key)
    itself = Target(path, collection, _COLLECTIONS, _GROUPS_ONLY, collection.__dict__)
    if known is not None and known.holds(collection, path):
        return Roster.of((itself, *known.metrics), known.kept)
    found: list[Target] = []
    for name, child in collection._modules.items():
        _collect(child, f"{path}.{name}" if path else name, found)
    members = [target.metric for target in found]
    if list(map(id, members)) == list(
        map(id, collection._modules.values())
    ):  # no wrappers, whose children may change
        reductions = [metric._reductions for metric in members]
        ref = weakref.ref(collection, lambda _: _known.pop(key, None))
        _known[key] = _Known(ref, path, reductions, list(map(len, reductions)), members, found, {})
    return [itself, *found]


def _share_in_groups(collection: MetricCollection) -> None:
    """Give the members of a compute group the first one's state, as the collection does when it is
    asked for them.

    Only the first of a group is updated. The collection's own method goes through
    ``nn.Module.__setattr__`` for every state, which costs more than the rest of a sync.
    """
    if collection._state_is_copy:
        collection._compute_groups_create_state_ref()  # the members' states are their own: leaves them so
        return
    for first, *others in collection._groups.values():
        home = _holder(collection._modules[first]).__dict__
        shared = {name: home[name] for name in (*home["_defaults"], COUNTER)}
        for other in others:
            _holder(collection._modules[other]).__dict__.update(shared)


def _holder(metric: Metric) -> Metric:
    """Return the metric that holds the states which ``metric`` shows: itself, but for wrappers that
    show their child's.

    Raises:
        StateError: a state is no plain attribute, as where a parameter was assigned to it.
    """
    if metric._reductions.keys() <= metric.__dict__.keys():
        return metric
    for child in metric._modules.values():
        if isinstance(child, Metric) and child._reductions is metric._reductions:
            return _holder(child)
    name = next(name for name in metric._reductions if name not in metric.__dict__)
    what = (
        "a parameter"
        if name in metric._parameters
        else "a buffer"
        if name in metric._buffers
        else "missing"
    )
    raise StateError(
        f"the state {name} of {type(metric).__name__} is {what}, and a state must be a plain "
        "attribute",
        do="assign a tensor, such as x.detach(), under the name that was given to add_state.",
    )


def _collect(module: nn.Module, path: str, found: list[Target]) -> None:
    if isinstance(module, MetricCollection):
        found += _members(module, path)
        return
    if isinstance(module, Metric):
        adapter = _METRICS if _holder(module) is module else _DELEGATING
        found.append(Target(path, module, adapter, adapter.specs(module), module.__dict__))
    for name, child in module._modules.items():
        if child is not None:
            _collect(child, f"{path}.{name}" if path else name, found)


def _is_default(metric: Metric, name: str) -> bool:
    default, value = metric._defaults[name], getattr(metric, name)
    if isinstance(default, Tensor) and isinstance(value, Tensor):
        if default.shape != value.shape:
            return False
        default = default.to(value.device)
        same = (default == value) | (default.isnan() & value.isnan())  # NaN is a default too
        return bool(same.all())
    return isinstance(value, list) and not value
