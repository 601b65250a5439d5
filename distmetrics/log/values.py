"""What a user logs as one number or one array, and many of them as one tensor.

Nothing here waits for a device, but for :func:`floats`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from torch.func import debug_unwrap

from distmetrics.collectives.dtensor import WHOLE, replica
from distmetrics.errors import InputError, InputTypeError

CPU = torch.device("cpu")
Number = Tensor | float


def number_of(what: str, value: Any, *, or_array: bool = False) -> Number:
    """Return one number, detached from the graph; with ``or_array`` also what has one dimension.

    Raises:
        InputError: it is something else.
    """
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        return _plain(what, value, or_array=or_array)
    if isinstance(value, str | bytes):
        raise InputTypeError(f"the {what} is no number: the text {value!r}", do="log float(...).")
    if isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in value):
        raise InputTypeError(f"the {what} is a list of tensors", do="log torch.stack(x).")
    try:
        if or_array and isinstance(value, Sized):
            array = torch.tensor(value, dtype=torch.float64, device="cpu")
            return _plain(what, array, or_array=True)
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputTypeError(f"the {what} is no number: {error}") from error


def _plain(what: str, value: Any, *, or_array: bool) -> Tensor:
    if hasattr(value, "full_tensor"):
        whole = replica(value)
        if whole is None:
            part = f"a DTensor of {value.placements}, of which this rank has a part"
            raise InputError(f"the {what} is {part}", do=WHOLE)
        value = whole
    is_number = value.numel() == 1
    if value.is_complex() or not (is_number or (or_array and value.ndim == 1)):
        raise _refused(what, value)
    value = value.detach() if value.requires_grad else value
    try:
        size = value.untyped_storage().nbytes()
    except NotImplementedError:
        inner = debug_unwrap(value)
        if inner is value or inner.ndim > value.ndim:  # it is sparse, or of vmap
            raise _refused(what, inner) from None
        size = inner.untyped_storage().nbytes()
    if is_number and value.ndim:
        value = value.reshape(())
    # A part of a tensor keeps all of it, and is changed with it; what was made in inference mode
    # counts no changes.
    is_part = size > (value.element_size() if is_number else value.nbytes)
    plain: Tensor = value.clone() if is_part or value.is_inference() else value
    return plain


def _refused(what: str, value: Tensor) -> InputError:
    shape = f"tensor of shape {[*value.shape]} and dtype {value.dtype}"
    return InputError(
        f"the {what} is a {shape}, which is no real number",
        do="log one number of it, as .mean() or .sum(), samples as .flatten(), or keep it in a "
        "metric.",
    )


def weight_of(weight: Any) -> Number:
    """Return a weight; one on a device is checked later.

    Raises:
        InputError: it is not a weight.
    """
    if type(weight) is float and 0.0 <= weight < math.inf:
        return weight
    number = number_of("weight", weight, or_array=True)
    if not isinstance(number, Tensor) and not 0.0 <= number < math.inf:
        raise InputError(f"the weight must be finite and not negative, got {number}")
    return number


def sizes_of(value: Number, weight: Number) -> tuple[int, int] | None:
    """Return the number of elements of an array, and of its weight; None for a number.

    Raises:
        InputError: the value has no weight for each of its elements, nor one for all.
    """
    one, other = (None if type(x) is float else [*x.shape] for x in (value, weight))  # type: ignore[union-attr]
    if not one and not other:
        return None
    if other and other != one:
        raise InputError(f"the value is of shape {one or []}, and its weight of shape {other}")
    return one[0], other[0] if other else 1  # type: ignore[index]


def stacked(values: Sequence[Any]) -> Tensor | None:
    """Return several tensors of one number as one, [n]; None unless they are all of one sort."""
    if len(values) < 2 or {*map(type, values)} != {Tensor} or len({x.dtype for x in values}) > 1:
        return None
    if values[0].is_complex() or any(x.ndim for x in values) or len({x.device for x in values}) > 1:
        return None
    whole = torch.stack([*values]).detach()
    return None if debug_unwrap(whole).ndim > 1 else whole  # in vmap each is many


def changes_of(*numbers: Number) -> int:
    """Return how often numbers were changed in place, all together; it never falls."""
    changes = 0
    for each in numbers:
        if isinstance(each, Tensor) and not each.is_inference():
            changes += each._version
    return changes


def device_of(value: Number, weight: Number) -> torch.device:
    """Return where a value is added up, so that nothing is copied to the host."""
    for each in (value, weight):
        if isinstance(each, Tensor) and each.device != CPU:
            return each.device
    return CPU


def moved(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on another device; only a copy to the CPU waits."""
    is_of_host = x.device.type == "cpu"
    if is_of_host and device.type == "cuda":  # which then reads the memory by itself
        x = x.pin_memory()
    return x.to(device, non_blocking=is_of_host)


def together(numbers: Sequence[Number], device: torch.device) -> Tensor:
    """Return numbers or arrays as float64 on a device, [n, ...]."""
    plain: Any = numbers
    if {*map(type, numbers)} <= {float}:
        if len({*plain}) == 1:
            return torch.full((len(plain),), plain[0], dtype=torch.float64, device=device)
        return moved(torch.tensor(plain, dtype=torch.float64, device="cpu"), device)
    tensors = []
    for each in numbers:
        if isinstance(each, Tensor):
            tensors.append(moved(each.to(torch.float64), device))
        else:
            tensors.append(torch.full((), each, dtype=torch.float64, device=device))
    return torch.stack(tensors)


def floats(numbers: Mapping[str, Number]) -> dict[str, float]:
    """Return numbers as those of Python, in one copy from the device if all are tensors on it."""
    column = together([*numbers.values()], CPU)
    return dict(zip(numbers, column.tolist(), strict=True))
