"""How each metric library keeps its state, and what third parties need to tell of theirs."""

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
