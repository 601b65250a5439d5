"""Whether two computed values are the same: in structure, in type, and within a tolerance."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distmetrics.comm.communicator import brief as type_of

_SHOWN = 60
_NUMBER = Tensor | float | int


@dataclass(frozen=True, slots=True)
class Equality:
    """A sense in which two values are the same.

    Integers, booleans and texts must be equal in every sense, NaN equals NaN, and containers have
    the same type, length and keys.

    Attributes:
        name: how reports call it.
        rtol: relative difference that floats may have.
        atol: absolute difference that floats may have.
        bitwise: whether floats must have the same bits, so that −0 is not 0.
        types: whether tensors must have the same dtype and shape, and numbers the same type.

    >>> relative(1e-6).difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]))
    '1 of 2 values differ, at most by 0.5'
    >>> EXACT.difference(0.5, 0.5)
    ''
    """

    name: str
    rtol: float = 0.0
    atol: float = 0.0
    bitwise: bool = False
    types: bool = True

    def difference(self, expected: Any, got: Any) -> str:
        """Return how ``got`` differs from ``expected``, or ``""`` if it does not."""
        of_numbers = isinstance(expected, _NUMBER) and isinstance(got, _NUMBER)
        if of_numbers and not self.types:
            return self._tensors(torch.as_tensor(expected), torch.as_tensor(got))
        if type(expected) is not type(got):
            texts = [f"{brief(x)} ({type(x).__name__})" for x in (got, expected)]
            return " instead of ".join(texts)
        if isinstance(expected, Tensor):
            return self._tensors(expected, got)
        if isinstance(expected, float):
            return self._tensors(*torch.tensor([expected, got], dtype=torch.float64))
        if isinstance(expected, Mapping):
            keys = [list(map(str, x)) for x in (got, expected)]
            if keys[0] != keys[1]:
                return f"keys {brief(list(got))} instead of {brief(list(expected))}"
            return self._first((key, expected[key], got[key]) for key in expected)
        if isinstance(expected, list | tuple):
            if len(expected) != len(got):
                return f"{len(got)} items instead of {len(expected)}"
            return self._first(zip(range(len(got)), expected, got, strict=True))
        return "" if bool(expected == got) else f"{brief(got)} instead of {brief(expected)}"

    def _first(self, items: Iterable[tuple[Any, Any, Any]]) -> str:
        """Return the first difference among the items of a container, with its place."""
        for key, expected, got in items:
            if difference := self.difference(expected, got):
                return f"[{key!r}]{'' if difference.startswith('[') else ' '}{difference}"
        return ""

    def _tensors(self, expected: Tensor, got: Tensor) -> str:
        expected, got = expected.detach().cpu(), got.detach().cpu()
        has_same_type = expected.dtype == got.dtype
        if expected.shape != got.shape or (self.types and not has_same_type):
            return " instead of ".join(type_of(x.dtype, x.shape) for x in (got, expected))
        if not has_same_type:
            both = torch.promote_types(expected.dtype, got.dtype)
            wide = torch.promote_types(both, torch.float64)
            expected, got = expected.to(wide), got.to(wide)
        if self._same(expected, got):
            return ""
        if expected.numel() == 1:
            return _instead(got.item(), expected.item())
        apart = (got.to(torch.complex128) - expected.to(torch.complex128)).abs()
        apart[got.isnan() & expected.isnan()] = 0
        differing = int((apart > self.atol).sum())
        largest = apart.nan_to_num(0, posinf=math.inf).max()
        return f"{differing} of {apart.numel()} values differ, at most by {largest:.3g}"

    def _same(self, expected: Tensor, got: Tensor) -> bool:
        if self.bitwise:
            expected, got = (x.contiguous().reshape(-1).view(torch.uint8) for x in (expected, got))
        if expected.is_floating_point() or expected.is_complex():
            return torch.allclose(got, expected, rtol=self.rtol, atol=self.atol, equal_nan=True)
        return torch.equal(expected, got)


def relative(rtol: float, atol: float = 0.0) -> Equality:
    """Return the equality of values that differ by no more than ``atol + rtol · |expected|``.

    >>> relative(1e-3).name
    'relative 0.001'
    """
    return Equality(f"relative {rtol:g}" + (f", absolute {atol:g}" if atol else ""), rtol, atol)


#: Floats are equal numbers, of the same dtype.
EXACT = Equality("exact")
#: Floats have the same bits, so that −0 is not 0.
BITWISE = Equality("bitwise", bitwise=True)
CLOSE = relative(1e-5, 1e-6)  # float32 sums, in whatever order they are taken


def brief(value: Any) -> str:
    """Return a value on at most a line.

    >>> brief(torch.zeros(100))
    'float32[100]'
    """
    if isinstance(value, Tensor):
        text = repr(value.tolist())
        is_short = value.numel() and len(text) <= _SHOWN
        return text if is_short else type_of(value.dtype, value.shape)
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _instead(got: Any, expected: Any) -> str:
    """Return two numbers with as many digits as it takes to tell them apart."""
    if isinstance(got, float) and isinstance(expected, float):
        for digits in (6, 9, 17):
            texts = f"{got:.{digits}g}", f"{expected:.{digits}g}"
            if texts[0] != texts[1]:
                return " instead of ".join(texts)
    return f"{got} instead of {expected}"
