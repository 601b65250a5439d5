"""What can be logged: a number, or a metric object that the module holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from distmetrics.errors import InputError, InputTypeError


def metric_at(module: nn.Module, path: str) -> Any:
    """Return the object at a dotted attribute path of the module."""
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def as_number(name: str, value: Any) -> Tensor:
    """Return ``value`` as a 0-dim float64 tensor on its device.

    Raises:
        InputError: it has more than one element, or none.
        InputTypeError: it is no real number.

    >>> as_number("loss", torch.tensor([3], dtype=torch.int64))
    tensor(3., dtype=torch.float64)
    """
    if isinstance(value, str | bytes):
        raise InputTypeError(
            f"{name} must be a number to be logged, got the text {value!r}",
            do="log float(...) of it; a logger's own methods take text.",
        )
    if not isinstance(value, Tensor):
        try:
            return torch.tensor(float(value), dtype=torch.float64)
        except (TypeError, ValueError) as error:
            raise InputTypeError(
                f"{name} must be a number to be logged, got a {type(value).__name__}"
            ) from error
    if value.numel() != 1:
        raise InputError(
            f"{name} must be one number to be logged, got a tensor of shape {list(value.shape)}",
            do="log its .mean() or .sum(), or keep it in a metric object and log that.",
        )
    if value.is_complex():
        raise InputTypeError(f"{name} must be a real number to be logged, got {value.dtype}")
    return value.detach().reshape(()).double()


def is_metric(value: Any) -> bool:
    """Whether ``value`` is a metric object: torchmetrics' kind, or anything that updates, computes
    and resets.
    """
    return all(callable(getattr(value, method, None)) for method in ("update", "compute", "reset"))
