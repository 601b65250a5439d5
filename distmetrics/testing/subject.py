"""What is judged, and what each rank does with it in a run.

A metric is made, updated, synced and read whatever library it is of. Scenarios are functions of a
:class:`Rank`, which can be sent to processes; most return a list of :class:`Same`: what the rank
has found that must be equal.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from distmetrics.comm.communicator import Communicator
from distmetrics.errors import ConfigurationError, InputTypeError
from distmetrics.launch.spawn import pickled
from distmetrics.layouts.communicator import layout
from distmetrics.metrics.adapters import MergingAdapter, targets
from distmetrics.metrics.adapters.base import adapter_of
from distmetrics.metrics.function import FunctionMetric
from distmetrics.metrics.sync import sync_and_compute, synced
from distmetrics.testing.shards import Batch
from distmetrics.tree import map_leaves

Sync = Literal["distmetrics", "own"]
T = TypeVar("T")


def quiet() -> contextlib.AbstractContextManager[Any]:
    """Silence warnings, for all threads: most metrics warn of samples as small as those tried."""
    return warnings.catch_warnings(action="ignore")


@dataclass(slots=True)
class PlainFunction:
    """A function of a list of batches that does its own collectives, in the form of a metric."""

    fn: Callable[[list[Any]], Any]
    batches: list[Any] = field(default_factory=list)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Keep a batch as the user wrote it."""
        self.batches.append(kwargs or args)

    def compute(self) -> Any:
        """Call the function with all batches."""
        return self.fn(self.batches)


def function(fn: Callable[[list[Any]], Any]) -> Callable[[], PlainFunction]:
    """Tell :func:`check_metric` that ``fn(batches)`` computes a value, and makes no metric.

    A function without defaults for its arguments needs no telling.

    Args:
        fn: called on every rank with that rank's batches; it does its own collectives.

    >>> function(len)().fn([(1,), (2,)])
    2
    """
    return lambda: PlainFunction(fn)


@dataclass(frozen=True)
class Subject:
    """A metric under test, and whose sync is judged.

    Attributes:
        make: makes the metric.
        sync: "distmetrics", or "own": that of the metric's library, or of its ``compute``.
        name: in reports.
        is_function: whether it is a function, which holds no state.
    """

    make: Callable[[], Any]
    sync: Sync
    name: str
    is_function: bool = False

    @classmethod
    def of(cls, make: Any, sync: Sync) -> Subject:
        """Return the subject for what a user gave.

        Raises:
            InputTypeError: ``make`` makes nothing that could be judged.
            ConfigurationError: distmetrics cannot sync it.
        """
        if sync not in ("distmetrics", "own"):
            raise ConfigurationError(f'sync must be "distmetrics" or "own", got {sync!r}')
        if not callable(make) or adapter_of(make) is not None:
            raise InputTypeError(
                "make must be a function or class that makes a new metric each time, got "
                f"{type(make).__name__}",
                do="pass BinaryF1Score, or lambda: MulticlassF1Score(num_classes=5), not a "
                "metric itself.",
            )
        inner = getattr(make, "func", make)  # of a functools.partial
        name = str(getattr(inner, "__name__", type(inner).__name__))
        if _needs_argument(make):
            make = function(make)
        with quiet():
            metric = make()
        if isinstance(metric, PlainFunction):
            return cls(make, sync, name, is_function=True)
        _check_metric(metric, sync)
        return cls(make, sync, type(metric).__name__ if name == "<lambda>" else name)

    def filled(self, batches: Sequence[Batch]) -> Any:
        """Return a new metric that was updated with the batches."""
        metric = self.make()
        self.update(metric, batches)
        return metric

    def update(self, metric: Any, batches: Sequence[Batch]) -> None:
        """Update with copies: a metric may change its arguments, which ranks on threads share."""
        for batch in batches:
            mine = copy.deepcopy(batch)
            if isinstance(mine, tuple):
                metric.update(*mine)
            else:
                metric.update(**mine)

    def synced(self, metric: Any, comm: Communicator) -> Any:
        """Compute over all ranks, by the sync that is judged."""
        if self.sync == "distmetrics" and not self.is_function:
            return kept(sync_and_compute(metric, comm=comm))
        if type(metric).__module__.partition(".")[0] == "torcheval":
            toolkit = importlib.import_module("torcheval.metrics.toolkit")
            return kept(toolkit.sync_and_compute(metric, recipient_rank="all"))
        return kept(metric.compute())


def state_of(metric: Any) -> dict[str, Any]:
    """Return a copy of a metric's local state, by name."""
    if adapter_of(metric) is None:
        return kept({**vars(metric)})
    state: dict[str, Any] = {}
    for path, judged, adapter, specs, values in targets(metric):
        names = [spec.name for spec in specs]
        if isinstance(adapter, MergingAdapter):
            # Its one state in the specs is the metric itself: what it holds is compared here.
            values = adapter.state(judged)
            names = [name for name in values if name != adapter.flag]
        state |= {f"{path}.{name}".lstrip("."): values.get(name) for name in names}
    return kept(state)


def _check_metric(metric: Any, sync: Sync) -> None:
    """Raise an error if what was made is no metric, or has no such sync."""
    kind, unknown = type(metric).__name__, adapter_of(metric) is None
    if unknown and sync == "distmetrics":
        raise ConfigurationError(
            f"make() returned a {kind}, which distmetrics cannot sync",
            do='register_adapter makes other metrics known; sync="own" judges the sync of '
            "its own compute().",
        )
    if isinstance(metric, FunctionMetric) and sync == "own":
        raise ConfigurationError(
            'a metric of from_function has no sync of its own; judge it with sync="distmetrics"'
        )
    if unknown and not (hasattr(metric, "update") and hasattr(metric, "compute")):
        raise InputTypeError(f"make() returned a {kind}, which has no update() and compute()")


def kept(value: T) -> T:
    """Return a copy that later updates cannot change: of tensors and modules, others may refuse."""

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().clone()
        # Subclasses of dict and list are leaves of a tree.
        is_mutable = isinstance(leaf, (torch.nn.Module, dict, list))
        return copy.deepcopy(leaf) if is_mutable else leaf

    return map_leaves(copied, value)


def _needs_argument(make: Callable[..., Any]) -> bool:
    try:
        inspect.signature(make).bind()
    except TypeError:
        return not inspect.isclass(make)
    except ValueError:  # a function of C says nothing of its arguments
        pass
    return False


# Scenarios.


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a run: its communicator, the metric that is judged, its share of the batches."""

    comm: Communicator
    subject: Subject
    batches: Sequence[Batch]

    @property
    def halves(self) -> tuple[Sequence[Batch], Sequence[Batch]]:
        """The batches in two parts, the first one not the smaller one."""
        half = (len(self.batches) + 1) // 2
        return self.batches[:half], self.batches[half:]

    def filled(self, batches: Sequence[Batch] | None = None) -> Any:
        """Return a metric that was updated with batches, by default with all of the rank's."""
        return self.subject.filled(self.batches if batches is None else batches)

    def synced(self, metric: Any) -> Any:
        """Return the value over all ranks, by the sync that is judged."""
        return self.subject.synced(metric, self.comm)


Scenario = Callable[[Rank], Any]


class Same(NamedTuple):
    """Two things that a rank has found, which must be equal.

    Attributes:
        what: what they are, for the report.
        bitwise: whether they must have the same bits, and not only values that are close.
    """

    what: str
    expected: Any
    got: Any
    bitwise: bool = True


class Interruption(Exception):  # noqa: N818  (no error: it is thrown on purpose, and caught)
    """Thrown into a sync, to see whether the local state comes back."""


def plain(rank: Rank) -> Any:
    """Update, sync and compute; return the value."""
    return rank.synced(rank.filled())


def twice(rank: Rank) -> list[Same]:
    """Sync and compute, and once more."""
    metric = rank.filled()
    return [Same("the value of the second sync", rank.synced(metric), rank.synced(metric))]


def observed(rank: Rank) -> Any:
    """Sync and compute in the middle, then go on; return the value at the end."""
    first, rest = rank.halves
    metric = rank.filled(first)
    # Half of the data may be too little for a value.
    with contextlib.suppress(ValueError, RuntimeError, IndexError):
        rank.synced(metric)
    rank.subject.update(metric, rest)
    return rank.synced(metric)


def restored(rank: Rank) -> list[Same]:
    """Compare the local state before a sync with that after it, and after an error inside one."""
    metric = rank.filled()
    before = state_of(metric)
    rank.synced(metric)
    found = [Same("the local state after a sync", before, state_of(metric))]
    metric = rank.filled()
    if _interrupted(rank, metric):
        found.append(Same("the local state after an error in a sync", before, state_of(metric)))
    return found


def _interrupted(rank: Rank, metric: Any) -> bool:
    """Raise an error in the middle of a sync; return False if this metric has no way for that."""

    def interrupt() -> Any:
        raise Interruption

    with contextlib.suppress(Interruption):
        if rank.subject.sync == "distmetrics":
            with synced(metric, comm=rank.comm):
                interrupt()
        if not hasattr(metric, "_wrap_compute"):
            return False
        metric._wrap_compute(interrupt)()
    return True


def reset(rank: Rank) -> list[Same]:
    """Use a metric, reset it, and use it again."""
    metric = rank.filled()
    first = rank.synced(metric)
    metric.reset()
    new, after = state_of(rank.subject.make()), state_of(metric)
    rank.subject.update(metric, rank.batches)
    return [
        Same("the state after reset()", new, after),
        Same("the value of one used again after reset()", first, rank.synced(metric), False),
    ]


def round_trips(rank: Rank) -> list[Same]:
    """Copy the metric in every way in the middle of its batches, and in the middle of a sync."""
    first, rest = rank.halves
    begun = rank.filled(first)
    copies = {
        "pickle": pickle.loads(pickled(begun)),  # noqa: S301  (our own bytes)
        "deepcopy": copy.deepcopy(begun),
        "state_dict": _through_state_dict(rank, begun),
    }
    values: dict[str, Any] = {}
    for way, other in copies.items():
        if other is not None:
            rank.subject.update(other, rest)
            values[f"a copy by {way}"] = rank.synced(other)
    metric = rank.filled()
    if rank.subject.sync == "distmetrics":
        with synced(metric, comm=rank.comm):
            inside = copy.deepcopy(metric)
        values["a copy in mid-sync"] = kept(inside.compute())
        values["what was copied in mid-sync"] = rank.synced(metric)
    expected = plain(rank)
    return [Same(f"the value of {what}", expected, got, False) for what, got in values.items()]


def _through_state_dict(rank: Rank, metric: Any) -> Any:
    if not (hasattr(metric, "state_dict") and hasattr(metric, "load_state_dict")):
        return None
    other = rank.subject.make()
    for each in (metric, other):
        for module in each.modules() if hasattr(each, "modules") else ():
            if hasattr(module, "persistent"):
                module.persistent(True)
    other.load_state_dict(copy.deepcopy(metric.state_dict()))
    return other


def synced_dtypes(rank: Rank) -> list[Same]:
    """Compare dtypes and devices of the local states with those of the states of all ranks."""
    metric = rank.filled()
    before = _dtypes(state_of(metric))
    with synced(metric, comm=rank.comm):
        after = _dtypes(state_of(metric))
    # A list without items has no dtype that could be kept.
    kept = {name: after.get(name, "") for name in before}
    return [Same("dtypes of the states of all ranks", before, kept)]


def _dtypes(state: dict[str, Any]) -> dict[str, str]:
    """Return dtypes and devices of the states that hold tensors, by name."""
    dtypes = {}
    for name, value in state.items():
        items = value if isinstance(value, list) else [value]
        kinds = {f"{x.dtype} on {x.device}" for x in items if torch.is_tensor(x)}
        if kinds:
            dtypes[name] = ", ".join(sorted(kinds))
    return dtypes


def in_subgroup(rank: Rank) -> Any:
    """Sync within the group of all ranks but the second one; return the value, and None there."""
    if rank.comm.rank == 1:
        return None
    members = [member for member in range(rank.comm.world_size) if member != 1]
    return sync_and_compute(rank.filled(), comm=rank.comm.transport.subgroup(members))


@dataclass(frozen=True)
class OverLayout:
    """Sync over a layout of all ranks, whose axes mean what their names say; return the value."""

    sizes: tuple[tuple[str, int], ...]

    def __call__(self, rank: Rank) -> Any:
        """Do it on a rank."""
        ranks = layout.of(dict(self.sizes), comm=rank.comm.transport)
        return sync_and_compute(rank.filled(), comm=ranks)


def beside_another(rank: Rank) -> list[Same]:
    """Sync two metrics together, of which one saw half of the data, and then each by itself."""
    shares = {"whole": rank.batches, "half": rank.halves[0]}
    metrics = {name: rank.filled(share) for name, share in shares.items()}
    together = sync_and_compute(metrics, comm=rank.comm)
    apart = {name: rank.synced(rank.filled(share)) for name, share in shares.items()}
    return [Same("the values of metrics synced together", apart, together)]


def merged(rank: Rank) -> Any:
    """Return a metric that holds the state of all ranks as its own."""
    return _merged(rank, rank.filled())


def prefilled(rank: Rank) -> Any:
    """Sync a metric that holds something already, and stands in the place of the batches."""
    return rank.synced(rank.batches[0])


def _merged(rank: Rank, metric: Any) -> Any:
    with synced(metric, comm=rank.comm):
        other = copy.deepcopy(metric)
    for target in targets(other):
        if target.adapter.flag:
            target.storage[target.adapter.flag] = False
    return other


def doubled(rank: Rank) -> list[dict[str, Any]]:
    """Double the state until counts pass 2²⁴ on rank 0, and add one batch on rank 1.

    Returns:
        the rank's own state and that of all; nothing for a metric with states of which a sync does
        not make the sum.
    """
    metric = rank.filled()
    kinds = {spec.kind for target in targets(metric) for spec in target.states}
    if kinds - {"sum"}:
        return []
    for _ in range(25):
        metric = _merged(rank, metric)
    if rank.comm.rank:
        metric = rank.filled(rank.batches[:1])
    own = state_of(metric)
    with synced(metric, comm=rank.comm):
        return [own, state_of(metric)]
