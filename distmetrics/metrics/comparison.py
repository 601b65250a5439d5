"""What ranks compare of a metric's arguments and attributes. Pure."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from distmetrics.collectives.buckets import to_bytes
from distmetrics.collectives.wire import DEEPEST
from distmetrics.comm.communicator import brief

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size))
_LARGEST = 1 << 16  # bytes of a tensor that travels
_LONGEST = 1000  # items of a list, say, that travels
_SAMPLE = 1000  # elements of a larger tensor that are compared


class Attribute(NamedTuple):
    """What ranks compare of an attribute.

    Attributes:
        text: equal where values are; "" where there is no such attribute.
        travels: True for plain values, small tensors, and lists, tuples, sets and dicts of such.
        is_partial: True where the text tells of a part of the value alone: the whole is too large.
        value: what travels, or None.
    """

    text: str = ""
    travels: bool = True
    is_partial: bool = False
    value: Any = None


def are_equal(one: Any, other: Any) -> bool:
    """True for tensors, or lists of them, with the same elements on any device; NaN equals NaN."""
    if one is other:
        return True
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.shape != other.shape:
        return False
    other = other.to(one.device)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def digest_of(attributes: Mapping[str, Any]) -> str:
    """Return a short text that is equal where all attributes are."""
    if _PLAIN.issuperset(map(type, attributes.values())):
        return _digest(repr(attributes))
    return _digest(repr([(name, described(value).text) for name, value in attributes.items()]))


@functools.lru_cache(maxsize=1024)
def _digest(text: str) -> str:
    return _short_hash(text.encode())


def described(value: Any) -> Attribute:
    """Return what ranks compare of a value: of what is too large, the size and a sample."""
    try:
        attribute = _described(value)
    except RecursionError:
        attribute = _kept(f"a {type(value).__name__} nested too deeply, or holding itself")
    return attribute._replace(value=value) if attribute.travels else attribute


def _described(value: Any, depth: int = 0) -> Attribute:
    kind = type(value)
    if kind in _PLAIN:
        return Attribute(repr(value))
    if kind in (list, tuple, dict, set, frozenset):
        return _of_items(value, depth)
    if kind is Tensor and not (value.is_nested or value.is_meta) and value.layout is torch.strided:
        flat = value.detach().resolve_conj().resolve_neg().reshape(-1)
        step = _step(value.numel(), value.nbytes)
        return _of_elements(brief(value.dtype, value.shape), to_bytes(flat[::step]), step)
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufc":
        step = _step(value.size, value.nbytes)
        data = value.reshape(-1)[::step].tobytes()
        return _of_elements(f"{value.dtype}{list(value.shape)}", data, step)
    name = "torch.nn.Module" if isinstance(value, nn.Module) else kind.__qualname__
    return _kept(f"a {name}", is_partial=False)


def _kept(text: str, *, is_partial: bool = True) -> Attribute:
    return Attribute(text, travels=False, is_partial=is_partial)


def _of_items(value: Any, depth: int) -> Attribute:
    name = type(value).__name__
    if depth > DEEPEST:
        raise RecursionError
    if len(value) > _LONGEST:
        return _kept(f"a {name} of {len(value)}, too large to be sent")
    items = value.items() if isinstance(value, dict) else value
    parts = [_described(item, depth + 1) for item in items]
    if not all(part.travels for part in parts):
        return _kept(f"a {name}", is_partial=any(part.is_partial for part in parts))
    texts = [part.text for part in parts]
    ordered = texts if isinstance(value, list | tuple) else sorted(texts)
    return Attribute(f"{name}({', '.join(ordered)})")


def _step(count: int, nbytes: int) -> int:
    """Return the distance of the elements that are compared; 1 for what travels."""
    return 1 if nbytes <= _LARGEST else 2 + count // _SAMPLE


def _of_elements(text: str, data: bytes, step: int) -> Attribute:
    text = f"{text} {_short_hash(data)}"
    return Attribute(text) if step == 1 else _kept(f"{text}, too large to be sent")


def _short_hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
