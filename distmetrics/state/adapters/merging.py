"""Libraries whose metrics merge themselves: every rank's state is sent as it is, and the library
makes one of them.
"""

from __future__ import annotations

import copy
import functools
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from distmetrics.state.adapters.base import Adapter
from distmetrics.state.spec import StateSpec, StateSpecs

_STATE, _FLAG = (
    "state",
    "(synced)",
)  # the flag is no identifier: no attribute of a metric is called so
_CHANGEABLE = (Tensor, list, dict, set, deque, bytearray)


class _Snapshot(NamedTuple):
    """A metric and its attributes at one time."""

    metric: Any
    attributes: dict[str, Any]


class _Home(MutableMapping[str, Any]):
    """Shows all attributes of a metric as one state, so that all of them are put back, also those
    added meanwhile.
    """

    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def __getitem__(self, name: str) -> Any:
        attributes = vars(self._metric)
        return (
            _Snapshot(self._metric, dict(attributes))
            if name == _STATE
            else attributes.get(name, False)
        )

    def __setitem__(self, name: str, value: Any) -> None:
        attributes = vars(self._metric)
        if name == _STATE:
            attributes.update(value.attributes)
            for added in attributes.keys() - value.attributes.keys():
                del attributes[added]
        elif value:
            attributes[name] = value
        else:
            attributes.pop(name, None)

    def __delitem__(self, name: str) -> None:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter((_STATE, _FLAG))

    def __len__(self) -> int:
        return 2


class MergingAdapter(Adapter):
    """For metrics that say how to merge several into one, and no more.

    Every rank's state travels as it is, all metrics' in one round: tensors packed, what holds them
    pickled. Then each rank makes one stand-in a rank, a metric with that rank's state, and has them
    merged in rank order: all ranks merge the same, so all get the same bits. While the merged state
    is in, the metric has the attributes of the merged stand-in; afterwards it has its own back, all
    of them.

    A subclass says which values it knows and what of a metric must travel.

    Attributes:
        constant: names of attributes that nothing ever changes, and that need no copy.
    """

    constant: tuple[str, ...] = ()

    marks: Mapping[str, Any] = {_FLAG: True}
    flag = _FLAG

    @abstractmethod
    def state(self, metric: Any) -> dict[str, Any]:
        """Return the attributes that other ranks need to merge; ``metric`` must stay as it is."""

    def signature(self, metric: Any) -> str:
        """Return a text that must be equal on all ranks: arguments, names and shapes of states."""
        return ""

    def merge(self, first: Any, others: Sequence[Any]) -> None:
        """Merge ``others`` into ``first``, in their order: stand-ins that may be changed."""
        first.merge_state(others)

    def specs(self, metric: Any) -> StateSpecs:
        """Return the one state that stands for all attributes."""
        return _specs(self, self.signature(metric))

    def home(self, metric: Any) -> MutableMapping[str, Any]:
        """Return a mapping that has all attributes as one state."""
        return _Home(metric)

    def stand_in(self, metric: Any, attributes: Mapping[str, Any]) -> Any:
        """Return a metric of the same type with these attributes, made without its ``__init__``."""
        other = object.__new__(type(metric))
        vars(other).update(attributes)
        return other

    def _merged(self, local: _Snapshot, states: Sequence[dict[str, Any]]) -> _Snapshot:
        """Return the local metric's snapshot with the state of all ranks in it; nothing local may
        change by it.
        """
        kept = {
            name: copy.deepcopy(value)
            if isinstance(value, _CHANGEABLE) and name not in self.constant
            else value
            for name, value in local.attributes.items()
            if name not in states[0]
        }
        first, *others = [self.stand_in(local.metric, {**kept, **state}) for state in states]
        if others:
            self.merge(first, others)
        return _Snapshot(local.metric, vars(first))


@functools.lru_cache(maxsize=1024)
def _specs(adapter: MergingAdapter, signature: str) -> StateSpecs:
    whole = StateSpec(
        _STATE, "each", start=lambda local: adapter.state(local.metric), merge=adapter._merged
    )
    return StateSpecs((whole,), (_FLAG,), signature)
