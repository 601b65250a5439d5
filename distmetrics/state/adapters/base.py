"""What a metric library must tell us, and which libraries do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from distmetrics.state.spec import StateSpecs


class Adapter(ABC):
    """How one library keeps the state of its metrics.

    States live under their names in a mapping, most often the metric's ``__dict__``. Putting the
    state of all ranks in, and the local state back, is then the same for every library, and nothing
    but the mapping is changed.

    A library whose states are sums, maxima or lists says so of each in :meth:`specs`, and they
    travel packed. For one that says no more of its metrics than how to merge two, there is
    :class:`~distmetrics.state.adapters.merging.MergingAdapter`.

    Attributes:
        marks: what else to set there while the state of all ranks is in, so that computing needs no
            further sync.
        counter: name under which the number of updates is kept, or "".
        flag: name of the mark that tells that the state of all ranks is in, or "". A metric's
            ``reset()`` takes it back.
        group: name under which a metric keeps the process group that it was made for, or "".
    """

    marks: Mapping[str, Any] = MappingProxyType({})
    counter: str = ""
    flag: str = ""
    group: str = ""

    @abstractmethod
    def knows(self, value: Any) -> bool:
        """Whether ``value`` is a metric of this library, or something of it that holds some."""

    @abstractmethod
    def specs(self, metric: Any) -> StateSpecs:
        """Return the metric's states, in an order that all ranks share; the same object for metrics
        made alike.
        """

    def home(self, metric: Any) -> MutableMapping[str, Any]:
        """Return the mapping in which states, marks and counter live: by default the attributes."""
        attributes: dict[str, Any] = vars(metric)
        return attributes

    def updates(self, metric: Any) -> int:
        """Return how often the metric was updated here; a metric that never was has nothing to add
        to the whole.

        Asked only where there is no ``counter``. By default 1: what the metric holds always counts.
        """
        return 1

    def compute(self, metric: Any) -> Any:
        """Return the metric's value, from the state that is in."""
        return metric.compute()

    def targets(self, metric: Any, path: str) -> Sequence[Target]:
        """Return what has states in what this adapter knows: by default itself; containers return
        their members.
        """
        return [Target(path, metric, self, self.specs(metric), self.home(metric))]


class Target(NamedTuple):
    """One metric: where it is, what it is, how to read it."""

    path: str
    metric: Any
    adapter: Adapter
    specs: StateSpecs
    home: MutableMapping[str, Any]

    @property
    def device(self) -> torch.device:
        """Where the metric keeps its state."""
        device = getattr(self.metric, "device", None)
        return device if isinstance(device, torch.device) else torch.device("cpu")


class Roster(tuple[Target, ...]):
    """Metrics that are known to be different objects with different paths, and are the same from
    sync to sync.

    Attributes:
        kept: what was derived from them, for the next sync; it must not hold the metrics.
    """

    kept: dict[str, Any]

    @classmethod
    def of(cls, found: Iterable[Target], kept: dict[str, Any]) -> Roster:
        """Return the roster of ``found`` with what was kept from the last one."""
        roster = cls(found)
        roster.kept = kept
        return roster
