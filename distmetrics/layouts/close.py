"""Results that should be the same but for rounding. Pure."""

from __future__ import annotations

from numbers import Number
from typing import Any

import torch
from torch import Tensor

from distmetrics.tree import flatten

# Sums of bfloat16 in another order differ by about one part in a thousand.
RELATIVE, ABSOLUTE = 1e-3, 1e-6


def far_apart(first: Any, mine: Any) -> dict[str, str]:
    """Return what differs by more than rounding, with both values, by its path.

    >>> far_apart({"loss": torch.tensor(1.0), "n": 3}, {"loss": torch.tensor(1.0001), "n": 4})
    {"['n']": '4 for 3'}
    """
    theirs, spec = flatten(first)
    own, own_spec = flatten(mine)
    if spec.text != own_spec.text:
        return {"the result": f"{own_spec.text} for {spec.text}"}
    apart = {}
    for path, one, other in zip(spec.paths, theirs, own, strict=True):
        if not _is_close(one, other):
            apart[path or "the value"] = f"{_short(other)} for {_short(one)}"
    return apart


def _is_close(first: Any, mine: Any) -> bool:
    if not isinstance(first, Tensor | Number) or not isinstance(mine, Tensor | Number):
        return bool(first == mine)
    one, other = (torch.as_tensor(each).detach().cpu() for each in (first, mine))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_complex():
        one, other = one.double(), other.double()
    near = torch.isclose(one, other, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    return bool(near.all())


def _short(value: Any) -> str:
    return " ".join(f"{value}".split())[:40]
