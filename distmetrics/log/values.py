"""What a user logs as one number or one array, and many of them as one tensor.

Nothing here waits for a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.dtensor import WHOLE, replica
from distmetrics.errors import InputError, InputTypeError

CPU = torch.device("cpu")
Number = Tensor | float


def number_of(name: Any, value: Any, what: str = "value", *, or_array: bool = False) -> Number:
    """Return a value as one number, detached; with ``or_array`` also what has one dimension."""
    if type(value) is float:
        return value
    try:
        if isinstance(value, Tensor):
            return _plain(value, or_array=or_array)
        has_tensors = isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in value)
        if has_tensors or isinstance(value, str | bytes):
            raise TypeError(value)  # noqa: TRY301  (told below, as what float() raises)
        if or_array and isinstance(value, Sized):
            array = torch.tensor(value, dtype=torch.float64, device="cpu")
            return _plain(array, or_array=True)
        return float(value)
    except InputError as error:
        raise InputError(f"the {what} of {name!r} is {error.what}", do=error.do) from None
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputTypeError(
            f"the {what} of {name!r} is no number: {error}",
            do="log float(x) of a text, and torch.stack(x) of a list of tensors.",
        ) from error


def _plain(value: Any, *, or_array: bool) -> Tensor:
    if hasattr(value, "full_tensor"):
        whole = replica(value)
        if whole is None:
            part = f"a DTensor of {value.placements}, of which this rank has a part"
            raise InputError(part, do=WHOLE)
        value = whole
    is_number = value.numel() == 1
    if value.is_complex() or not (is_number or (or_array and value.ndim == 1)):
        raise InputError(
            f"a tensor of shape {[*value.shape]} and dtype {value.dtype}, which is no real number",
            do="log one number of it, as .mean() or .sum(), samples as .flatten(), or keep it in "
            "a metric.",
        )
    value = value.detach() if value.requires_grad else value
    try:
        size = value.untyped_storage().nbytes()
    except NotImplementedError:
        what = "a sparse tensor, or one of a function that torch.func transforms"
        raise InputError(what, do="log a plain tensor, outside of that function.") from None
    if is_number and value.ndim:
        value = value.reshape(())
    # A part of a tensor keeps all of it, and is changed with it; what was made in inference mode
    # counts no changes.
    plain: Tensor = value.clone() if size > value.nbytes or value.is_inference() else value
    return plain


def weight_of(name: Any, weight: Any) -> Number:
    """Return a weight; one on a device is checked later."""
    if type(weight) is float and 0.0 <= weight < math.inf:
        return weight
    number = number_of(name, weight, "weight", or_array=True)
    if not isinstance(number, Tensor) and not 0.0 <= number < math.inf:
        what = f"the weight of {name!r} must be finite and not negative"
        raise InputError(f"{what}, got {number}")
    return number


def stacked(values: Sequence[Any]) -> Tensor | None:
    """Return several tensors of one number as one, [n]; None unless they are all of one sort."""
    if len(values) < 2 or {*map(type, values)} != {Tensor}:
        return None
    if any(x.ndim for x in values) or len({(x.dtype, x.device) for x in values}) > 1:
        return None
    return _plain(torch.stack([*values]), or_array=True)


def changes_of(*numbers: Number) -> int:
    """Return how often numbers were changed in place, all together; it never falls."""
    changes = 0
    for each in numbers:
        if isinstance(each, Tensor) and not each.is_inference():
            changes += each._version
    return changes


def moved(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on another device; only a copy to the CPU waits."""
    is_of_host = x.device.type == "cpu"
    if is_of_host and device.type == "cuda":  # which then reads the memory by itself
        x = x.pin_memory()
    return x.to(device, non_blocking=is_of_host)


def together(numbers: Sequence[Number], device: torch.device) -> Tensor:
    """Return numbers, or tensors of one sort, as float64 on a device, [n, k]."""
    rows: Any = [*numbers]
    if isinstance(rows[0], Tensor):
        whole = torch.stack(rows)
    else:
        whole = torch.tensor(rows, dtype=torch.float64, device="cpu")
    whole = whole if whole.ndim > 1 else whole.unsqueeze(1)
    return moved(whole, device).to(torch.float64)
