"""Whether two computed values are the same: in structure, in type, and within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["ATOL", "RTOL", "difference"]

RTOL, ATOL = 1e-5, 1e-6


def difference(expected: Any, got: Any, *, rtol: float = RTOL, atol: float = ATOL) -> str:
    """Say how ``got`` differs from ``expected``, or "" if it does not.

    Integers, booleans and strings must be equal, floats close; NaN equals NaN. Containers must have the same type,
    length and keys, tensors the same dtype and shape.
    """
    if isinstance(expected, Tensor) and isinstance(got, Tensor):
        return _tensors(expected, got, rtol, atol)
    if type(expected) is not type(got):
        return f"{_brief(got)} ({type(got).__name__}) instead of {_brief(expected)} ({type(expected).__name__})"
    if isinstance(expected, Mapping):
        if list(map(str, expected)) != list(map(str, got)):
            return f"keys {_brief(list(got))} instead of {_brief(list(expected))}"
        return _first({f"[{key!r}]": (expected[key], got[key]) for key in expected}, rtol, atol)
    if isinstance(expected, list | tuple):
        if len(expected) != len(got):
            return f"{len(got)} items instead of {len(expected)}"
        return _first({f"[{i}]": pair for i, pair in enumerate(zip(expected, got, strict=True))}, rtol, atol)
    if isinstance(expected, float):
        close = math.isclose(expected, got, rel_tol=rtol, abs_tol=atol) or (math.isnan(expected) and math.isnan(got))
        return "" if close else f"{got:.6g} instead of {expected:.6g}"
    return "" if bool(expected == got) else f"{_brief(got)} instead of {_brief(expected)}"


def _first(pairs: dict[str, tuple[Any, Any]], rtol: float, atol: float) -> str:
    """Return the first difference among the items of a container, with its place."""
    for place, (expected, got) in pairs.items():
        if found := difference(expected, got, rtol=rtol, atol=atol):
            return f"{place}{'' if found.startswith('[') else ' '}{found}"
    return ""


def _tensors(expected: Tensor, got: Tensor, rtol: float, atol: float) -> str:
    expected, got = expected.detach().cpu(), got.detach().cpu()
    if expected.dtype != got.dtype or expected.shape != got.shape:
        return f"{_type(got)} instead of {_type(expected)}"
    if expected.is_floating_point() or expected.is_complex():
        if torch.allclose(expected, got, rtol=rtol, atol=atol, equal_nan=True):
            return ""
    elif torch.equal(expected, got):
        return ""
    if expected.numel() == 1:
        return f"{got.item():.6g} instead of {expected.item():.6g}"
    wide = torch.float64
    apart = (got.to(wide) - expected.to(wide)).abs()
    apart[got.isnan() & expected.isnan()] = 0
    return f"{int((apart > atol).sum())} of {apart.numel()} values differ, at most by {apart.nan_to_num(0).max():.3g}"


def _type(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _brief(value: Any) -> str:
    text = _type(value) if isinstance(value, Tensor) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
