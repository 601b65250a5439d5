"""What a metric library must tell us, and which libraries do."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, NamedTuple, Protocol

import torch

from distmetrics.state.spec import StateSpecs

__all__ = ["Adapter", "Target"]


class Adapter(Protocol):
    """How one library keeps the state of its metrics.

    States live under their names in a mapping, most often the metric's ``__dict__``. Putting the state of all ranks in,
    and the local state back, is then the same for every library, and nothing but the mapping is changed.

    Attributes:
        marks: what else to set there while the state of all ranks is in, so that computing needs no further sync.
        counter: name under which the number of updates is kept, or "".
        flag: name of the mark that tells that the state of all ranks is in, or "".
    """

    @property
    def marks(self) -> Mapping[str, Any]:
        """See the class."""
        ...

    @property
    def counter(self) -> str:
        """See the class."""
        ...

    @property
    def flag(self) -> str:
        """See the class."""
        ...

    def specs(self, metric: Any) -> StateSpecs:
        """Return the metric's states, in an order that all ranks share; the same object for metrics made alike."""
        ...

    def home(self, metric: Any) -> MutableMapping[str, Any]:
        """Return the mapping in which states, marks and counter live."""
        ...

    def updates(self, metric: Any) -> int:
        """Return how often the metric was updated here; a metric that never was has nothing to add to the whole."""
        ...


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
