"""How each metric library keeps its state, and what third parties need to tell of theirs."""

from __future__ import annotations

from distmetrics.metrics.adapters.base import Adapter, StateSpec, Target
from distmetrics.metrics.adapters.merging import MergingAdapter
from distmetrics.metrics.adapters.registry import compute, register_adapter, roots, targets

__all__ = [
    "Adapter",
    "MergingAdapter",
    "StateSpec",
    "Target",
    "compute",
    "register_adapter",
    "roots",
    "targets",
]
