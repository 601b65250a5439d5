"""What a metric library must tell us; the metrics in what a user hands over, and who syncs them."""

from __future__ import annotations

import functools
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from importlib import metadata
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from distmetrics.comm.communicator import Communicator
from distmetrics.comm.process_group import of_group
from distmetrics.errors import ConfigurationError, StateError

Kind = Literal["sum", "mean", "max", "min", "stack", "cat", "items", "object", "each"]
WHOLE = "(state)"  # the name of a state that is all attributes


class StateSpec(NamedTuple):
    """One state of a metric.

    Attributes:
        name: of the attribute that holds it.
        kind: how the ranks' values become one. ``sum``, ``mean``, ``max``, ``min``: tensors,
            elementwise; ``stack``: tensors, one row a rank; ``cat``: tensors, or lists of them,
            whose rows are joined in rank order; ``items``: lists joined in rank order, items
            unbroken; ``object``: lists of anything, joined in rank order;
            ``each``: anything, and ``merge`` makes one of it.
        finish: applied to the result where the metric brings a reduction of its own.
        shape: of the state before the first update, if arguments of the metric decide it.
        start: for ``each``: returns the part of the local value to be sent; default all of it.
        merge: for ``each``: called with the local value and, in rank order, what every rank has
            sent; returns the value of all ranks. It may change what was sent, but not the local
            value.
        piece: which piece of a DTensor a rank holds; set by distmetrics, not by adapters.

    >>> [(state.name, state.kind) for state in (StateSpec("total", "sum"), StateSpec("ids", "cat"))]
    [('total', 'sum'), ('ids', 'cat')]
    """

    name: str
    kind: Kind
    finish: Callable[[Any], Any] | None = None
    shape: tuple[int, ...] = ()
    start: Callable[[Any], Any] = lambda value: value
    merge: Callable[[Any, list[Any]], Any] | None = None
    piece: str = ""


class Adapter(ABC):
    """How one library keeps the state of its metrics.

    States live under their names in a mapping, most often the metric's ``__dict__``. A sync changes
    only this mapping. Sums, maxima and lists travel packed. For a library that only merges one
    metric into another there is :class:`~distmetrics.metrics.adapters.merging.MergingAdapter`.

    Attributes:
        synced_flags: what else to set in the mapping while the state of all ranks is in, so that
            computing does not sync again.
        counter: name under which the number of updates is kept, or ``""``.
        flag: name of the one among ``synced_flags`` that tells that the state of all ranks is in,
            or ``""``. A metric's ``reset()`` takes it back.
        group: name under which a metric keeps the process group that it was made for, or ``""``.

    >>> from types import SimpleNamespace
    >>> class Totals(Adapter):  # of metrics that are a total
    ...     def knows(self, value):
    ...         return isinstance(value, SimpleNamespace)
    ...     def states(self, metric):
    ...         return [StateSpec("total", "sum")]
    ...     def compute(self, metric):
    ...         return metric.total
    >>> register_adapter(Totals())
    >>> run(2, lambda comm: sync_and_compute(SimpleNamespace(total=torch.tensor(1 + comm.rank))))
    [tensor(3), tensor(3)]
    """

    synced_flags: Mapping[str, Any] = MappingProxyType({})
    counter: str = ""
    flag: str = ""
    group: str = ""

    @abstractmethod
    def knows(self, value: Any) -> bool:
        """Return True if ``value`` is a metric of this library, or a collection of its metrics."""

    @abstractmethod
    def states(self, metric: Any) -> Sequence[StateSpec]:
        """Return the metric's states, in an order that all ranks share."""

    def storage(self, metric: Any) -> MutableMapping[str, Any]:
        """Return the mapping in which states, flags and counter live: by default the attributes."""
        attributes: dict[str, Any] = vars(metric)
        return attributes

    def updates(self, metric: Any) -> int:
        """Return how often the metric was updated here; with 0 it has nothing to add to the whole.

        Asked only where ``counter`` says nothing. By default 1: what the metric holds always
        counts.
        """
        return 1

    def arguments(self, metric: Any) -> Mapping[str, str]:
        """Return what the metric was made with, as texts that must be equal on all ranks."""
        return {}

    def attributes(self, metric: Any) -> Mapping[str, Any]:
        """Return attributes that are not states, but that an update may set and computing read.

        A rank without an update takes them over from the ranks that have some.
        """
        return {}

    def groups(self, metric: Any) -> Sequence[Sequence[Any]]:
        """Return the groups of a collection's metrics, of each of which only the first is updated.

        The others show its state. Empty by default: no groups.
        """
        return ()

    def compute(self, metric: Any) -> Any:
        """Return the metric's value, from the state that is in."""
        return metric.compute()

    def targets(self, metric: Any, path: str) -> Sequence[Target]:
        """Return the metrics with states in ``metric``: by default itself."""
        return [Target.of(path, metric, self)]


class Target(NamedTuple):
    """One metric: where it is, what it is, how to read it.

    Attributes:
        path: keys, indices and names of modules that lead to it, joined by dots; ``""`` for a
            metric by itself.
        metric: the library's own object.
        adapter: who knows it.
        states: its states, in an order that all ranks share.
        storage: the mapping in which states, flags and counter live.

    >>> total = from_function(lambda state: state["n"], reduce={"n": "sum"})
    >>> target = targets({"seen": total})[0]
    >>> target.path, target.metric is total, target.states[0].kind, target.is_synced
    ('seen', True, 'sum', False)
    """

    path: str
    metric: Any
    adapter: Adapter
    states: tuple[StateSpec, ...]
    storage: MutableMapping[str, Any]

    @classmethod
    def of(cls, path: str, metric: Any, adapter: Adapter) -> Target:
        """Return the target for a metric that ``adapter`` knows."""
        return cls(path, metric, adapter, tuple(adapter.states(metric)), adapter.storage(metric))

    @property
    def name(self) -> str:
        """What errors call the metric, its path or else its class."""
        return self.path or type(self.metric).__name__

    @property
    def device(self) -> torch.device:
        """Where the metric keeps its state."""
        device = getattr(self.metric, "device", None)
        return device if isinstance(device, torch.device) else torch.device("cpu")

    @property
    def is_synced(self) -> bool:
        """True while the state of all ranks is in."""
        return bool(self.adapter.flag and self.storage.get(self.adapter.flag))


GROUP = "distmetrics.adapters"  # of entry points
# By the module of its metrics: an adapter imports its library, and so it is asked only where that
# module is imported already.
_BUILT_IN = {
    "torchmetrics": "distmetrics.metrics.adapters.torchmetrics",
    "torcheval.metrics": "distmetrics.metrics.adapters.torcheval",
    "distmetrics.metrics.function": "distmetrics.metrics.function",
}
_NO_METRICS = frozenset({dict, list, tuple, str, int, float, type(None), Tensor})
_registered: list[Adapter] = []


def register_adapter(adapter: Adapter) -> None:
    """Make the metrics that ``adapter`` knows known to :func:`sync_and_compute` and :func:`synced`.

    Registered adapters are asked before those built in and those found by entry points, the latest
    first; so one may replace another. Registering an adapter again changes nothing.
    Every rank must register the same.

    Args:
        adapter: an instance of a subclass of :class:`~distmetrics.metrics.adapters.Adapter`.

    Raises:
        ConfigurationError: ``adapter`` is not an Adapter.

    >>> register_adapter("my_library")
    Traceback (most recent call last):
    distmetrics.errors.ConfigurationError: 'my_library' is no instance of an Adapter
    Do:     pass an instance of a subclass of distmetrics.metrics.adapters.Adapter.
    """
    _check_adapter(adapter)
    if adapter not in _registered:
        _registered.insert(0, adapter)


def _check_adapter(adapter: Any) -> None:
    if not isinstance(adapter, Adapter):
        raise ConfigurationError(
            f"{adapter!r} is no instance of an Adapter",
            do="pass an instance of a subclass of distmetrics.metrics.adapters.Adapter.",
        )


def adapter_of(value: Any) -> Adapter | None:
    """Return the adapter that knows ``value``, None where none does."""
    if type(value) in _NO_METRICS:
        return None
    return next((adapter for adapter in _adapters() if adapter.knows(value)), None)


def _adapters() -> Iterator[Adapter]:
    yield from _registered
    for library, module in _BUILT_IN.items():
        if library in sys.modules:
            yield importlib.import_module(module).ADAPTER
    yield from installed()


@functools.cache
def installed() -> list[Adapter]:
    """Load the adapters of installed distributions, once; an error is raised at each try."""
    adapters: list[Adapter] = []
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda x: (x.name, x.value)):
        try:
            loaded = point.load()
            adapters.append(loaded() if isinstance(loaded, type) else loaded)
            _check_adapter(adapters[-1])
        except Exception as error:
            dist = point.dist
            whose = f" of the distribution {dist.name} {dist.version}" if dist else ""
            raise StateError(
                f'the entry point {point.name} = "{point.value}"{whose}, in group {GROUP}, cannot '
                f"be loaded: {type(error).__name__}: {error}",
                do="update or uninstall that distribution.",
            ) from error
    return adapters


def targets(metrics: Any) -> list[Target]:
    """Return every metric in ``metrics`` once, by its first path, in an order that ranks share.

    Args:
        metrics: metrics in any mixture of mappings, sequences and modules; all else is passed over.

    Raises:
        StateError: an installed adapter cannot be loaded.

    >>> total = from_function(lambda state: state["n"], reduce={"n": "sum"})
    >>> [target.path for target in targets({"b": total, "a": [total, "text"]})]
    ['a.0']
    """
    result: dict[str, Target] = {}  # by path
    seen: set[int] = set()
    for path, root, adapter in roots(metrics):
        for target in adapter.targets(root, path):
            if id(target.metric) not in seen:
                seen.add(id(target.metric))
                # The paths of the keys 1 and "1" are the same.
                name = target.path
                while name in result:
                    name += " (2)"
                result[name] = target._replace(path=name)
    return [*result.values()]


def compute(metrics: Any) -> Any:
    """Compute every metric in ``metrics`` from the state that is in, in the form of the input.

    Nothing is sent. A mapping gives a dict, a sequence a list, a module a dict by paths; anything
    else stays as it is.

    >>> total = from_function(lambda state: state["n"], reduce={"n": "sum"})
    >>> total.update(n=torch.tensor(5))
    >>> compute({"seen": total, "epoch": 3})
    {'seen': tensor(5), 'epoch': 3}
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
    """Yield the path of each outermost metric, the metric, and its adapter.

    A collection of a library counts as one metric; :func:`targets` looks into it.

    Args:
        metrics: as for :func:`targets`.
        path: what the paths begin with.

    >>> total = from_function(lambda state: state["n"], reduce={"n": "sum"})
    >>> [(path, type(metric).__name__) for path, metric, _ in roots({"train": [total]})]
    [('train.0', 'FunctionMetric')]
    """
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


def communicator_of(targets: Sequence[Target], default: Communicator) -> Communicator:
    """Return the communicator for metrics whose user has not passed one: of their own group."""
    comms: dict[Communicator, str] = {}
    for target in targets:
        if target.states:
            group = target.storage.get(target.adapter.group)
            own = getattr(group, "communicator", None)  # of the kit's groups, of threads
            comm = default if group is None else own or of_group(group)
            if comm is None:  # an error of this rank alone, for which no other waits
                what = f"the metric {target.path}" if target.path else "the metric"
                raise ConfigurationError(
                    f"{what} was made for a process group that this rank is not in, or that is "
                    f"none of torch.distributed: {group!r}",
                    do="sync it on the ranks of its group alone, pass what "
                    "torch.distributed.new_group returned, or pass comm=, which overrules "
                    "process_group.",
                )
            comms.setdefault(comm, target.path)
    if len(comms) > 1:
        raise StateError(
            f"the metrics {' and '.join(comms.values())} were made for different process groups, "
            "and one sync talks in one",
            do="sync the metrics of each group in a call of their own, or pass comm=, which "
            "overrules process_group.",
        )
    return next(iter(comms), default)


def parts_of(value: Any) -> list[Any]:
    """Return the items of a state that is a list, else the state itself."""
    return value if isinstance(value, list) else [value]


def are_equal(one: Any, other: Any) -> bool:
    """True for tensors, or lists of them, with the same elements on any device; NaN equals NaN."""
    if one is other:
        return True
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    if not type(one) is type(other) is Tensor or one.shape != other.shape:
        return False
    other = other.to(one.device)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
