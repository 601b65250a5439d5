"""What a metric library must tell us, and which libraries do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch

from distmetrics.message import Message, Shape

Kind = Literal["sum", "mean", "max", "min", "stack", "cat", "items", "object", "each", "piece"]


class Piece(Message, frozen=True):
    """Which piece of a DTensor a rank holds, of which shape the whole is, and how it is reduced."""

    op: Literal["sum", "max", "min"]
    which: str  # by dimension of the tensor, which of how many
    shape: Shape

    def __str__(self) -> str:
        return f"{self.op} {self.which} of {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One state of a metric.

    Attributes:
        name: of the attribute that holds it.
        kind: how the ranks' values become one. ``sum``, ``mean``, ``max``, ``min`` elementwise;
            ``stack``: one row a rank; ``cat``: rows joined in rank order; ``items``: lists joined
            in rank order, items unbroken; ``object``: lists of anything, joined in rank order;
            ``each``: anything, and ``merge`` makes one of it; ``piece``, which no adapter says: the
            ranks that hold the same piece of a DTensor reduce it.
        finish: applied to the result where the metric brings a reduction of its own.
        shape: before the first update; ranks whose metrics were made with other arguments differ in
            it.
        start: for ``each``: what of the local value is sent.
        merge: for ``each``: called with the local value and, in rank order, what every rank has
            sent; returns the value of all ranks. It may change what was sent, and nothing of the
            local value.
        piece: which piece it is.
    """

    name: str
    kind: Kind
    finish: Callable[[Any], Any] | None = None
    shape: tuple[int, ...] = ()
    start: Callable[[Any], Any] | None = None
    merge: Callable[[Any, list[Any]], Any] | None = None
    piece: Piece | None = None


class Adapter(ABC):
    """How one library keeps the state of its metrics.

    States live under their names in a mapping, most often the metric's ``__dict__``. A sync changes
    nothing but the mapping. States that are sums, maxima or lists travel packed. For a library that
    only merges one metric into another there is
    :class:`~distmetrics.metrics.adapters.merging.MergingAdapter`.

    Attributes:
        synced_flags: what else to set there while the state of all ranks is in, so that computing
            needs no further sync.
        counter: name under which the number of updates is kept, or "".
        flag: name of the one among ``synced_flags`` that tells that the state of all ranks is in,
            or "". A metric's ``reset()`` takes it back.
        group: name under which a metric keeps the process group that it was made for, or "".
    """

    synced_flags: Mapping[str, Any] = MappingProxyType({})
    counter: str = ""
    flag: str = ""
    group: str = ""

    @abstractmethod
    def knows(self, value: Any) -> bool:
        """Return True if ``value`` is a metric of this library, or holds some in its way."""

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
        """Return its metrics by groups, of each of which only the first is updated.

        The others show its state. Empty where no groups were formed, as by default.
        """
        return ()

    def compute(self, metric: Any) -> Any:
        """Return the metric's value, from the state that is in."""
        return metric.compute()

    def targets(self, metric: Any, path: str) -> Sequence[Target]:
        """Return the metrics with states in ``metric``: by default itself."""
        return [Target.of(path, metric, self)]


class Target(NamedTuple):
    """One metric: where it is, what it is, how to read it."""

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
    def device(self) -> torch.device:
        """Where the metric keeps its state."""
        device = getattr(self.metric, "device", None)
        return device if isinstance(device, torch.device) else torch.device("cpu")

    @property
    def is_synced(self) -> bool:
        """True while the state of all ranks is in."""
        return bool(self.adapter.flag and self.storage.get(self.adapter.flag))
