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


class Text(NamedTuple):
    """What ranks compare of a value.

    Attributes:
        text: equal where values are.
        travels: True for plain values, small tensors, and lists, tuples, sets and dicts of such.
        is_partial: True where it tells of a part of the value alone: the whole is too large.
    """

    text: str
    travels: bool = True
    is_partial: bool = False


def digest_of(attributes: Mapping[str, Any]) -> str:
    """Return a short text that is equal where all attributes are."""
    if _PLAIN.issuperset(map(type, attributes.values())):
        return _digest(repr(attributes))
    return _digest(repr([(name, text_of(value).text) for name, value in attributes.items()]))


@functools.lru_cache(maxsize=1024)
def _digest(text: str) -> str:
    return _short_hash(text.encode())


def text_of(value: Any) -> Text:
    """Return what ranks compare of a value: of what is too large, the size and a sample."""
    try:
        return _text_of(value)
    except RecursionError:
        return Text(
            f"a {type(value).__name__} nested too deeply, or holding itself",
            travels=False,
            is_partial=True,
        )


def _text_of(value: Any, depth: int = 0) -> Text:
    kind = type(value)
    if kind in _PLAIN:
        return Text(repr(value))
    if kind in (list, tuple, dict, set, frozenset):
        return _text_of_items(value, depth)
    if kind is Tensor and not (value.is_nested or value.is_meta) and value.layout is torch.strided:
        flat = value.detach().resolve_conj().resolve_neg().reshape(-1)
        step = _step(value.numel(), value.nbytes)
        data = to_bytes(flat[::step].clone(memory_format=torch.contiguous_format).view(torch.uint8))
        return _text_of_elements(brief(value.dtype, value.shape), data, step)
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufc":
        step = _step(value.size, value.nbytes)
        return _text_of_elements(
            f"{value.dtype}{list(value.shape)}", value.reshape(-1)[::step].tobytes(), step
        )
    name = "torch.nn.Module" if isinstance(value, nn.Module) else kind.__qualname__
    return Text(f"a {name}", travels=False)


def _text_of_items(value: Any, depth: int) -> Text:
    kind = type(value)
    if depth > DEEPEST:
        raise RecursionError
    if len(value) > _LONGEST:
        return _too_large(f"a {kind.__name__} of {len(value)}")
    items = value.items() if kind is dict else value
    parts = [_text_of(item, depth + 1) for item in items]
    if not all(part.travels for part in parts):
        is_partial = any(part.is_partial for part in parts)
        return Text(f"a {kind.__name__}", travels=False, is_partial=is_partial)
    texts = [part.text for part in parts]
    ordered = texts if kind in (list, tuple) else sorted(texts)
    return Text(f"{kind.__name__}({', '.join(ordered)})")


def _too_large(text: str) -> Text:
    return Text(f"{text}, too large to be sent", travels=False, is_partial=True)


def _step(count: int, nbytes: int) -> int:
    """Return the distance of the elements that are compared; 1 for what travels."""
    return 1 if nbytes <= _LARGEST else 2 + count // _SAMPLE


def _text_of_elements(text: str, data: bytes, step: int) -> Text:
    text = f"{text} {_short_hash(data)}"
    return Text(text) if step == 1 else _too_large(text)


def _short_hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
