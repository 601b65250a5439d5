"""Values as bytes that can be sent, and back, as data alone: reading them runs no code of a peer.

Numbers and texts become JSON, and so does what holds them: a JSON list that starts with the name of
its type. The bytes of ``bytes`` and of NumPy arrays follow in one run, in the order in which they
are needed, so no more is read than has come; then tensors' data, packed.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import struct
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor

from distmetrics.collectives.buckets import (
    ALIGN,
    LeafSpec,
    align,
    dtype_of,
    layout,
    pack,
    short_name,
    to_bytes,
    unpack,
    unsendable,
)
from distmetrics.errors import InputTypeError
from distmetrics.message import convert

# Bytes of the JSON, and of what follows it: 16, so that tensors are aligned.
_HEAD = struct.Struct("<QQ")
_NATIVE = frozenset((bool, int, float, str, type(None)))
_SEQUENCES: dict[str, Callable[..., Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "Size": torch.Size,
}  # fmt: skip
_MAPPINGS: dict[str, Callable[..., Any]] = {
    "dict": dict, "OrderedDict": OrderedDict, "Counter": Counter,
}  # fmt: skip
_TAGS = {kind: tag for tag, kind in {**_SEQUENCES, **_MAPPINGS}.items()}
# Of elements that are plain bytes: numbers, times, texts of a fixed length.
_ARRAY_DTYPE = re.compile(r"[<>|=][biufcmMSU]\d{1,9}(\[\w{1,9}\])?")
_MOST_DIMENSIONS = 64  # that NumPy has
DEEPEST = 100  # containers in containers
_ACCELERATOR = "accelerator"  # the note of a tensor that is not on the CPU


def serialize(value: Any, *, allow_pickle: bool = False) -> Tensor:
    """Return a value as uint8, on the device of its tensors; on the CPU if they are on several.

    Args:
        value: numbers, strings, bytes, None, dtypes, tensors, NumPy arrays, and lists, tuples, sets
            and dicts of such.
        allow_pickle: pickle a value that is anything else.

    Raises:
        InputTypeError: something in it is no data.
        Exception: what pickling raises for a part that is no tensor and cannot be pickled.

    >>> deserialize(serialize({"n": 3, "parts": [torch.ones(2), torch.zeros(0)]}))
    {'n': 3, 'parts': [tensor([1., 1.]), tensor([])]}
    """
    writer = _Writer()
    try:
        form = writer.form(value)
    except InputTypeError:
        if not allow_pickle:
            raise
        writer, form = _Writer(), ["pickle"]
        file = io.BytesIO()
        _Pickler(file, writer).dump(value)
        writer.raw += file.getvalue()
    tensors = writer.tensors
    specs = [LeafSpec.of("", x, "" if x.is_cpu else _ACCELERATOR) for x in tensors]
    text = json.dumps((msgspec.to_builtins(specs), form), separators=(",", ":")).encode()
    head = _HEAD.pack(len(text), len(writer.raw))
    length = len(head) + len(text) + len(writer.raw)
    data = bytearray().join((head, text, writer.raw, bytes(align(length) - length)))
    start = torch.frombuffer(data, dtype=torch.uint8)
    if not tensors:
        return start
    devices = {x.device for x in tensors}
    device = devices.pop() if len(devices) == 1 else start.device
    return torch.cat([start.to(device), pack(tensors, layout(tensors), device)])


def deserialize(
    run: Tensor, *, allow_pickle: bool = False, accelerator: torch.device | None = None
) -> Any:
    """Return what :func:`serialize` was given; tensors have memory of their own.

    Args:
        run: what it returned.
        allow_pickle: whether to unpickle, which runs code that the sender has chosen.
        accelerator: where tensors go that were on one, with the others on the CPU; None leaves all
            on the device of ``run``.

    Raises:
        Exception: the bytes are malformed.
    """
    length, raw_length = _HEAD.unpack(to_bytes(run[: _HEAD.size]))
    end = _HEAD.size + length
    specs, form = json.loads(to_bytes(run[_HEAD.size : end]))
    raw = to_bytes(run[end : end + raw_length])
    data = run[align(end + raw_length) :]
    if data.storage_offset() % ALIGN:  # only a copy can be viewed as any dtype
        data = data.clone()
    specs = convert(specs, list[LeafSpec])
    places = [run.device] * 2 if accelerator is None else [torch.device("cpu"), accelerator]
    tensors = []
    for spec, x in zip(specs, unpack(data, layout(specs)), strict=True):
        # Each of its own memory: it may be changed in place, or saved.
        tensors.append(x.to(places[spec.note == _ACCELERATOR], copy=True))
    if form == ["pickle"] and allow_pickle:
        return _Unpickler(io.BytesIO(raw), tensors).load()
    return _Reader(tensors, raw).value(form)


class _Writer:
    """Turns values into JSON; tensors, each once, and the bytes of all others are kept aside."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.raw = bytearray()
        self._places: dict[int, int] = {}

    def form(self, value: Any, depth: int = 0) -> Any:
        """Return a value's JSON. Raises InputTypeError if it cannot be sent."""
        kind = type(value)
        if kind in _NATIVE:
            return value
        if depth > DEEPEST:
            raise _refused(f"a {kind.__name__} is nested over {DEEPEST} deep, or contains itself")
        if kind is deque:
            tag, items = "deque", [value.maxlen, *value]
        elif kind in _TAGS:
            tag = _TAGS[kind]
            items = [*value.keys(), *value.values()] if tag in _MAPPINGS else value
        else:
            return self._of_scalar_or_array(value, kind)
        inner = depth + 1
        return [tag, *[x if type(x) in _NATIVE else self.form(x, inner) for x in items]]

    def _of_scalar_or_array(self, value: Any, kind: type) -> list[Any]:
        if (place := self.place(value)) is not None:
            return ["tensor", place]
        if kind is complex:
            return ["complex", value.real, value.imag]
        if kind is bytes:
            self.raw += value
            return ["bytes", len(value)]
        if kind is torch.dtype:
            return ["dtype", short_name(value)]
        numpy = sys.modules.get("numpy")  # who has an array has it
        is_array = numpy is not None and kind is numpy.ndarray
        is_scalar = numpy is not None and issubclass(kind, numpy.generic)
        if (is_array or is_scalar) and _ARRAY_DTYPE.fullmatch(value.dtype.str):
            self.raw += value.tobytes()
            return ["array" if is_array else "scalar", value.dtype.str, *value.shape]
        raise _refused(f"a {kind.__module__}.{kind.__qualname__} is no plain data")

    def place(self, value: Any) -> int | None:
        """Return a plain tensor's place among the tensors, None for anything else."""
        if type(value) is not Tensor:
            return None
        if any(unsendable(value.dtype, value.layout, value.is_meta)):
            return None
        if id(value) not in self._places:
            self._places[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self._places[id(value)]


def _refused(what: str) -> InputTypeError:
    return InputTypeError(
        what,
        do="keep numbers, strings, tensors or arrays; or say allow_pickle=True on every rank, to "
        "the call or the Trainer: what the others send is then unpickled, which is for ranks that "
        "you trust.",
    )


class _Reader:
    """Makes values of what a :class:`_Writer` has written. Raises if it is malformed."""

    def __init__(self, tensors: list[Tensor], raw: bytes) -> None:
        self._tensors = tensors
        self._raw = memoryview(raw)

    def value(self, form: Any) -> Any:
        """Return the value of some JSON."""
        if type(form) in _NATIVE:
            return form
        tag, *parts = form
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](self._values(parts))
        if tag in _MAPPINGS:
            items = self._values(parts)
            half = len(items) // 2
            return _MAPPINGS[tag](dict(zip(items[:half], items[half:], strict=True)))
        if tag == "deque":
            maxlen, *items = self._values(parts)
            return deque(items, maxlen)
        if tag == "tensor":
            return self._tensors[parts[0]]
        if tag == "complex":
            return complex(*parts)
        if tag == "bytes":
            return bytes(self._take(parts[0]))
        if tag == "dtype":
            return dtype_of(parts[0])
        array = self._array(*parts)
        return array[()] if tag == "scalar" else array

    def _values(self, forms: list[Any]) -> list[Any]:
        return [x if type(x) in _NATIVE else self.value(x) for x in forms]

    def _take(self, count: int) -> memoryview:
        if not 0 <= count <= len(self._raw):
            raise ValueError(f"{count} bytes of {len(self._raw)}")
        taken, self._raw = self._raw[:count], self._raw[count:]
        return taken

    def _array(self, dtype: str, *shape: int) -> Any:
        import numpy as np

        if not _ARRAY_DTYPE.fullmatch(dtype) or len(shape) > _MOST_DIMENSIONS:
            raise ValueError(f"an array of {dtype}")
        kind = np.dtype(dtype)
        data = self._take(kind.itemsize * math.prod(shape))
        return np.ndarray(shape, kind, bytearray(data))


class _Pickler(pickle.Pickler):
    """Leaves plain tensors to a writer."""

    def __init__(self, file: io.BytesIO, writer: _Writer) -> None:
        super().__init__(file)
        self._writer = writer

    def persistent_id(self, obj: Any) -> int | None:
        """Return a tensor's place among the tensors, None for what is to be pickled."""
        return self._writer.place(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: int) -> Tensor:
        """Return the tensor with that place."""
        return self._tensors[pid]
