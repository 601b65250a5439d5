"""Logging inside a compiled function: each value is one operation that torch does not look into.

What it writes to, a token, keeps the operations in order, and keeps torch from dropping them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, library

from distmetrics.log.kinds import KINDS, Kind
from distmetrics.log.window import Window

_WINDOWS: WeakValueDictionary[int, Window] = WeakValueDictionary()
_NUMBERS = count()
# A CUDA graph would record the operation, and not run it again.
_TAGS = tuple(tag for name, tag in vars(torch.Tag).items() if name == "cudagraph_unsafe")


class Compiled:
    """Notes values in a window, from compiled code."""

    def __init__(self, window: Window) -> None:
        self._number = next(_NUMBERS)
        self._token = torch.zeros((), device="cpu")
        _WINDOWS[self._number] = window

    def note(self, name: Any, kind: Kind, value: Any, weight: Any) -> None:
        """Take a value, as :meth:`Window.note` does."""
        number = _tensor_of(value, torch.device("cpu"))
        scale = _tensor_of(weight, number.device) if kind.is_weighted else None
        _note(self._token, self._number, name, kind.name, number, scale)

    def note_all(self, values: Mapping[Any, Any], kind: Kind, weight: Any) -> None:
        """Take values of several names, as :meth:`Window.note_all` does."""
        for name, value in values.items():
            self.note(name, kind, value, weight)


def _tensor_of(value: Any, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, list | tuple):
        return torch.tensor(value, dtype=torch.float64, device=device)
    return torch.full((), value, dtype=torch.float64, device=device)


@library.custom_op("distmetrics::note", mutates_args=("token",), tags=_TAGS)
def _note(
    token: Tensor, window: int, name: str, kind: str, value: Tensor, weight: Tensor | None
) -> None:
    # Compiled code uses the memory of its values again.
    scale = 1.0 if weight is None else weight.clone()
    _WINDOWS[window].note(name, KINDS[kind], value.clone(), scale)
