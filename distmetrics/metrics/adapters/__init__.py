"""How each metric library keeps its state, and how third parties tell of theirs."""

from __future__ import annotations

from distmetrics.metrics.adapters.base import (
    Adapter,
    StateSpec,
    Target,
    compute,
    register_adapter,
    roots,
    targets,
)
from distmetrics.metrics.adapters.merging import MergingAdapter

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
