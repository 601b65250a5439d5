"""What is judged: how a metric is made, updated, synced and read, whatever library it is of."""

from __future__ import annotations

import copy
import importlib
import inspect
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from distmetrics.comm.communicator import Communicator
from distmetrics.errors import ConfigurationError, InputTypeError
from distmetrics.metrics.adapters import MergingAdapter, targets
from distmetrics.metrics.adapters.base import adapter_of
from distmetrics.metrics.function import FunctionMetric
from distmetrics.metrics.sync import sync_and_compute
from distmetrics.testing.shards import Batch
from distmetrics.tree import map_leaves

Sync = Literal["distmetrics", "own"]
T = TypeVar("T")


def quiet() -> AbstractContextManager[Any]:
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
    """Say that ``fn(batches) -> value`` is what is to be judged, and not what makes a metric.

    It is called on every rank with that rank's batches, and does its own collectives. A function
    that needs an argument is taken for one anyway.

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

    def value(self, metric: Any) -> Any:
        """Compute in a world of one."""
        return _copied(metric.compute())

    def synced(self, metric: Any, comm: Communicator) -> Any:
        """Compute over all ranks, by the sync that is judged."""
        if self.sync == "distmetrics" and not self.is_function:
            return _copied(sync_and_compute(metric, comm=comm))
        if type(metric).__module__.partition(".")[0] == "torcheval":
            toolkit = importlib.import_module("torcheval.metrics.toolkit")
            return _copied(toolkit.sync_and_compute(metric, recipient_rank="all"))
        return self.value(metric)

    def state(self, metric: Any) -> dict[str, Any]:
        """Return a copy of the local state, by name."""
        if adapter_of(metric) is None:
            return _copied({**vars(metric)})
        state: dict[str, Any] = {}
        for path, judged, adapter, specs, values in targets(metric):
            names = [spec.name for spec in specs]
            if isinstance(adapter, MergingAdapter):
                # Its one state in the specs is the metric itself: what it holds is compared here.
                values = adapter.state(judged)
                names = [name for name in values if name != adapter.flag]
            state |= {f"{path}.{name}".lstrip("."): values.get(name) for name in names}
        return _copied(state)


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


def _copied(value: T) -> T:
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
