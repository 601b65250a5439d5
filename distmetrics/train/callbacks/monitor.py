"""When a value that a callback watches is better than another."""

from __future__ import annotations

import math
from typing import Literal

from distmetrics.errors import ConfigurationError

Mode = Literal["min", "max"]


def check_mode(mode: str) -> Mode:
    """Return ``mode``.

    Raises:
        ConfigurationError: it is neither "min" nor "max".
    """
    if mode not in ("min", "max"):
        raise ConfigurationError(f"mode must be 'min' or 'max', got {mode!r}")
    return mode  # type: ignore[return-value]


def improved(value: float, best: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """True if ``value`` is better than ``best`` by more than ``min_delta``; NaN is never better.

    >>> improved(0.5, 0.6, "min"), improved(0.5, 0.6, "max"), improved(0.5, None, "max")
    (True, False, True)
    """
    if math.isnan(value):
        return False
    if best is None or math.isnan(best):
        return True
    return value < best - min_delta if mode == "min" else value > best + min_delta
