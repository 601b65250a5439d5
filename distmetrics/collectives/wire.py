"""Values as bytes that can be sent, and back, as data alone: reading them runs no code of a peer.

Numbers, texts and bytes become msgpack, and so does what holds them: a list that starts with the
name of its type. Tensors' data follow, packed.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence, Set
from typing import Any

import msgspec
import torch
from torch import Tensor

from distmetrics.collectives.buckets import (
    ALIGN,
    LeafSpec,
    dtype_of,
    layout,
    pack,
    short_name,
    to_bytes,
    unpack,
    unsendable,
)
from distmetrics.errors import InputTypeError
from distmetrics.message import Message, parse

_LENGTH = struct.Struct("<Q")
_NATIVE: Set[type] = frozenset((bool, int, float, str, bytes, type(None)))
# Integers of more than 64 bits, and texts that UTF-8 cannot hold, are not; they come seldom.
_SURELY_NATIVE = _NATIVE - {int, str}
_TAGS: dict[Any, str] = {
    kind: kind.__name__
    for kind in (list, tuple, set, frozenset, torch.Size, deque, dict, OrderedDict, Counter)
}
_CONTAINERS = {tag: kind for kind, tag in _TAGS.items()}
_UTF8 = ("utf-8", "surrogatepass")
# Of elements that are plain bytes: numbers, times, texts of a fixed length.
_ARRAY_DTYPE = re.compile(r"[<>|=][biufcmMSU]\d{1,9}(\[\w{1,9}\])?")
DEEPEST = 100  # containers in containers
_ACCELERATOR = "accelerator"  # the note of a tensor that is not on the CPU


class _Packed(Message, frozen=True):
    tensors: tuple[LeafSpec, ...]
    form: Any


def serialize(value: Any, *, allow_pickle: bool = False) -> Tensor:
    """Return a value as uint8, on the device of its first tensor, else on the CPU.

    With ``allow_pickle`` a value that is no data is pickled, else it raises InputTypeError.

    >>> deserialize(serialize({"n": 3, "parts": [torch.ones(2), torch.zeros(0)]}))
    {'n': 3, 'parts': [tensor([1., 1.]), tensor([])]}
    """
    try:
        tensors, text = _written(value, _NATIVE, allow_pickle)
    except (OverflowError, UnicodeEncodeError):
        tensors, text = _written(value, _SURELY_NATIVE, allow_pickle)
    parts = text, _LENGTH.pack(len(text))
    end = torch.frombuffer(bytearray().join(parts), dtype=torch.uint8)
    if not tensors:
        return end
    data = pack(tensors, layout(tensors), tensors[0].device)
    return torch.cat([data, end.to(data.device)])


def _written(value: Any, native: Set[type], allow_pickle: bool) -> tuple[list[Tensor], bytes]:
    """Return the tensors in a value, and all else as msgpack."""
    tensors: list[Tensor] = []
    try:
        form = _form(value, native, tensors)
    except InputTypeError:
        if not allow_pickle:
            raise
        tensors.clear()
        form = ["pickle", _pickled(value, tensors)]
    specs = [LeafSpec.of("", x, "" if x.is_cpu else _ACCELERATOR) for x in tensors]
    return tensors, msgspec.msgpack.encode(_Packed(tuple(specs), form))


def deserialize(
    run: Tensor, *, allow_pickle: bool = False, accelerator: torch.device | None = None
) -> Any:
    """Return what :func:`serialize` was given; raise any Exception if the bytes are malformed.

    Tensors of an accelerator go to ``accelerator``, default the device of ``run``.
    """
    end = len(run) - _LENGTH.size
    (length,) = _LENGTH.unpack(to_bytes(run[end:]))
    if length > end:
        raise ValueError(f"{length} bytes in {end}")
    sent, data = parse(_Packed, to_bytes(run[end - length : end])), run[: end - length]
    if data.storage_offset() % ALIGN:  # only a copy can be viewed as any dtype
        data = data.clone()
    tensors = []
    for spec, x in zip(sent.tensors, unpack(data, layout(sent.tensors)), strict=True):
        device = accelerator or run.device if spec.note == _ACCELERATOR else "cpu"
        # Each of its own memory: it may be changed in place, or saved.
        tensors.append(x.to(device, copy=True))
    match sent.form:
        case "pickle", bytes(pickled) if allow_pickle:
            unpickler = _Unpickler(io.BytesIO(pickled))
            unpickler.tensors = tensors
            return unpickler.load()
    return _read(sent.form, tensors)


def _form(value: Any, native: Set[type], tensors: list[Tensor], depth: int = 0) -> Any:
    """Return what msgpack holds of a value; tensors are kept aside. Raises InputTypeError."""
    kind = type(value)
    if kind in native:
        return value
    if kind not in _TAGS:
        return _form_of_scalar(value, kind, tensors)
    if depth > DEEPEST:
        raise _refused(f"a {kind.__name__} is nested over {DEEPEST} deep, or contains itself")
    depth += 1
    if kind is dict and {*map(type, value)} <= native:
        pairs = value.items()
        return {k: x if type(x) in native else _form(x, native, tensors, depth) for k, x in pairs}
    items = [*value, *value.values()] if issubclass(kind, dict) else value
    if kind is deque:
        items = [value.maxlen, *value]
    items = [x if type(x) in native else _form(x, native, tensors, depth) for x in items]
    return [_TAGS[kind], *items]


def _form_of_scalar(value: Any, kind: type, tensors: list[Tensor]) -> list[Any]:
    if (place := _place(value, tensors)) is not None:
        return ["tensor", place]
    if kind is int:
        return ["int", f"{value:x}"]
    if kind is str:
        return ["str", value.encode(*_UTF8)]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind is torch.dtype:
        return ["dtype", short_name(value)]
    numpy = sys.modules.get("numpy")  # who has an array has it
    if (
        numpy is not None
        and (kind is numpy.ndarray or issubclass(kind, numpy.generic))
        and _ARRAY_DTYPE.fullmatch(value.dtype.str)
    ):
        tag = "array" if kind is numpy.ndarray else "scalar"
        return [tag, value.dtype.str, value.shape, value.tobytes()]
    raise _refused(f"a {kind.__module__}.{kind.__qualname__} is no plain data")


def _place(value: Any, tensors: list[Tensor]) -> int | None:
    """Return a plain tensor's place among the tensors, where it is put; None for anything else."""
    if type(value) is not Tensor or any(unsendable(value.dtype, value.layout, value.is_meta)):
        return None
    tensors.append(value)
    return len(tensors) - 1


def _refused(what: str) -> InputTypeError:
    return InputTypeError(
        what,
        do="keep numbers, strings, tensors or arrays; or say allow_pickle=True on every rank, to "
        "the call or the Trainer: what the others send is then unpickled, which is for ranks that "
        "you trust.",
    )


def _read(form: Any, tensors: Sequence[Tensor]) -> Any:
    """Return the value of a form. Raises if it is malformed."""
    if type(form) in _NATIVE:
        return form
    if type(form) is dict:
        return {key: x if type(x) in _NATIVE else _read(x, tensors) for key, x in form.items()}
    tag, *parts = form
    if tag == "tensor":
        return tensors[parts[0]]
    if tag in _SCALARS:
        return _SCALARS[tag](*parts)
    kind = _CONTAINERS[tag]
    items = [x if type(x) in _NATIVE else _read(x, tensors) for x in parts]
    if kind is deque:
        return deque(items[1:], items[0])
    if issubclass(kind, dict):
        half = len(items) // 2
        return kind(dict(zip(items[:half], items[half:], strict=True)))
    return kind(items)


def _array(dtype: str, shape: Sequence[int], data: bytes) -> Any:
    import numpy as np

    if not _ARRAY_DTYPE.fullmatch(dtype):
        raise ValueError(f"an array of {dtype}")
    return np.ndarray(shape, dtype, bytearray(data))


_SCALARS: dict[str, Callable[..., Any]] = {
    "int": lambda text: int(text, 16),
    "str": lambda data: data.decode(*_UTF8),
    "complex": complex,
    "dtype": dtype_of,
    "array": _array,
    "scalar": lambda *parts: _array(*parts)[()],
}


def _pickled(value: Any, tensors: list[Tensor]) -> bytes:
    """Return a value's pickle, without the tensors; raise InputTypeError if it has none."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.tensors = tensors
    try:
        pickler.dump(value)
    except Exception as error:  # any class may raise anything
        what = f"a {type(value).__name__} cannot be pickled: {error}"
        raise InputTypeError(what) from error
    return file.getvalue()


class _Pickler(pickle.Pickler):
    tensors: list[Tensor]

    def persistent_id(self, obj: Any) -> int | None:
        return _place(obj, self.tensors)


class _Unpickler(pickle.Unpickler):
    tensors: list[Tensor]

    def persistent_load(self, pid: int) -> Tensor:
        return self.tensors[pid]
