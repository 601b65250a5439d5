"""Libraries whose metrics merge themselves: every rank's state is sent, and the library merges."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from distmetrics.metrics.adapters.base import WHOLE, Adapter, StateSpec

_FLAG = "(synced)"  # no identifier: no attribute of a metric is called so
_CHANGEABLE = (Tensor, list, dict, set, deque, bytearray)


class MergingAdapter(Adapter):
    """For metrics that say how to merge several into one, and no more.

    Every rank's state is sent as it is. Then each rank makes a stand-in for every rank, a metric
    with that rank's state, and merges them in rank order: all ranks get the same bits. While the
    merged state is in, the metric has the attributes of the merged stand-in.

    A subclass says which values it knows and what of a metric must travel.

    Attributes:
        constant: names of attributes that never change, so that they need no copy.

    >>> from collections import Counter
    >>> class Words:  # a metric that knows how to merge
    ...     def __init__(self, text):
    ...         self.counts = Counter(text.split())
    ...     def merge_state(self, others):
    ...         for other in others:
    ...             self.counts.update(other.counts)
    ...     def compute(self):
    ...         return dict(self.counts)
    >>> class WordsAdapter(MergingAdapter):
    ...     def knows(self, value):
    ...         return isinstance(value, Words)
    ...     def state(self, metric):
    ...         return {"counts": metric.counts}
    >>> from distmetrics import register_adapter
    >>> register_adapter(WordsAdapter())
    >>> run(2, lambda comm: sync_and_compute(Words("a b" if comm.rank else "a")))[0]
    {'a': 2, 'b': 1}
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
        start = lambda _: self.state(metric)  # noqa: E731
        return [StateSpec(WHOLE, "each", start=start, merge=partial(self._merged, metric))]

    def arguments(self, metric: Any) -> Mapping[str, str]:
        """Return the signature."""
        return {"": signature} if (signature := self.signature(metric)) else {}

    def stand_in(self, metric: Any, attributes: Mapping[str, Any]) -> Any:
        """Return a metric of the same type with these attributes, made without its ``__init__``."""
        other = object.__new__(type(metric))
        vars(other).update(attributes)
        return other

    def _merged(
        self, metric: Any, local: Mapping[str, Any], states: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the attributes with the state of all ranks; nothing local may change by it."""
        kept: dict[str, Any] = {}
        for name, value in local.items():
            if name not in states[0]:
                may_change = isinstance(value, _CHANGEABLE) and name not in self.constant
                kept[name] = copy.deepcopy(value) if may_change else value
        first, *others = [self.stand_in(metric, {**kept, **state}) for state in states]
        if others:
            self.merge(first, others)
        merged: dict[str, Any] = vars(first)
        return merged
