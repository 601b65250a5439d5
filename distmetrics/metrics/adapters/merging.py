"""Libraries whose metrics merge themselves: every rank's state is sent, and the library merges."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from distmetrics.metrics.adapters.base import Adapter, StateSpec

# The flag is no identifier: no attribute of a metric is called so.
_STATE, _FLAG = "state", "(synced)"
_CHANGEABLE = (Tensor, list, dict, set, deque, bytearray)


class _Attributes(NamedTuple):
    """A metric and its attributes at one time."""

    metric: Any
    values: dict[str, Any]


class _Storage(MutableMapping[str, Any]):
    """Shows all attributes of a metric as one state, so that all of them are put back."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def __getitem__(self, name: str) -> Any:
        attributes = vars(self._metric)
        if name == _STATE:
            return _Attributes(self._metric, dict(attributes))
        if name == _FLAG:
            return attributes.get(name, False)
        raise KeyError(name)

    def __setitem__(self, name: str, value: Any) -> None:
        attributes = vars(self._metric)
        if name == _STATE:
            attributes.update(value.values)
            for added in attributes.keys() - value.values.keys():
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

    Every rank's state travels as it is, all metrics' in one round. Then each rank makes one
    stand-in a rank, a metric with that rank's state, and has them merged in rank order: all ranks
    get the same bits. While the merged state is in, the metric has the attributes of the merged
    stand-in; afterwards all of its own.

    A subclass says which values it knows and what of a metric must travel.

    Attributes:
        constant: names of attributes that nothing ever changes, and that need no copy.
    """

    constant: tuple[str, ...] = ()
    synced_flags: Mapping[str, Any] = {_FLAG: True}
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

    def states(self, metric: Any) -> list[StateSpec]:
        """Return the one state that stands for all attributes."""
        start = lambda local: self.state(local.metric)  # noqa: E731
        return [StateSpec(_STATE, "each", start=start, merge=self._merged)]

    def arguments(self, metric: Any) -> Mapping[str, str]:
        """Return the signature."""
        return {"": signature} if (signature := self.signature(metric)) else {}

    def storage(self, metric: Any) -> MutableMapping[str, Any]:
        """Return a mapping that has all attributes as one state."""
        return _Storage(metric)

    def stand_in(self, metric: Any, attributes: Mapping[str, Any]) -> Any:
        """Return a metric of the same type with these attributes, made without its ``__init__``."""
        other = object.__new__(type(metric))
        vars(other).update(attributes)
        return other

    def _merged(self, local: _Attributes, states: Sequence[dict[str, Any]]) -> _Attributes:
        """Return the attributes with the state of all ranks; nothing local may change by it."""
        kept: dict[str, Any] = {}
        for name, value in local.values.items():
            if name not in states[0]:
                may_change = isinstance(value, _CHANGEABLE) and name not in self.constant
                kept[name] = copy.deepcopy(value) if may_change else value
        first, *others = [self.stand_in(local.metric, {**kept, **state}) for state in states]
        if others:
            self.merge(first, others)
        return _Attributes(local.metric, vars(first))
