"""torcheval: metrics that merge the state of others into their own."""

from __future__ import annotations

import functools
import inspect
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torcheval.metrics import Metric

from distmetrics.comm.communicator import brief
from distmetrics.metrics.adapters.merging import MergingAdapter


class TorchevalAdapter(MergingAdapter):
    """Reads the names that ``_add_state`` keeps, and merges by ``merge_state``."""

    constant = ("_state_name_to_default",)

    def knows(self, value: Any) -> bool:
        """Return True for a metric."""
        return isinstance(value, Metric)

    def state(self, metric: Metric[Any]) -> dict[str, Any]:
        """Return the states, made ready for merging as torcheval does it, on a stand-in."""
        ready = self.stand_in(metric, vars(metric))
        for name in metric._state_name_to_default:
            vars(ready)[name] = _plain(getattr(metric, name))
        ready._prepare_for_merge_state()
        return {name: getattr(ready, name) for name in metric._state_name_to_default}

    def signature(self, metric: Metric[Any]) -> str:
        """Return arguments kept under their names, and the states before the first update."""
        held, defaults = vars(metric), metric._state_name_to_default
        texts = []
        for name in _parameters(type(metric)):
            is_plain = isinstance(held.get(name, metric), bool | int | float | str | None)
            if is_plain and name not in defaults:
                texts.append(f"{name}={held[name]!r}")
        for name, default in defaults.items():
            if isinstance(default, Tensor):
                form = brief(default.dtype, default.shape)
            elif hasattr(default, "__len__"):  # may hold many tensors, each on the rank's device
                form = f"{type(default).__name__}[{len(default)}]"
            else:
                form = repr(default)
            texts.append(f"{name} {form}")
        return ", ".join(texts)

    def merge(self, first: Metric[Any], others: Sequence[Metric[Any]]) -> None:
        """Merge in rank order; dicts have a default for missing keys, as after ``reset``."""
        for name, default in first._state_name_to_default.items():
            if isinstance(default, dict):
                zero = lambda: torch.tensor(0.0, device=first.device)  # noqa: E731
                setattr(first, name, defaultdict(zero, getattr(first, name)))
        first.merge_state(others)


ADAPTER = TorchevalAdapter()


@functools.lru_cache(maxsize=256)
def _parameters(kind: type) -> tuple[str, ...]:
    return tuple(inspect.signature(kind).parameters)


def _plain(value: Any) -> Any:
    """Copy what holds tensors, not the tensors; a default factory, often a lambda, stays here."""
    if isinstance(value, defaultdict):
        return dict(value)
    return value.copy() if isinstance(value, list | dict) else value
