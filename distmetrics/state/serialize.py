"""Any value as one run of bytes, and back: tensors' data as it is, the rest pickled. Pure."""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.pack import LeafSpec, align, from_bytes, layout, pack, to_bytes, unpack

# Bytes of the pickled part with its padding, and nothing: 16, so that tensors are aligned.
_HEAD = struct.Struct("<QQ")


class _Pickler(pickle.Pickler):
    """Leaves plain tensors out, and keeps them aside; a tensor that occurs twice is kept once."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        """Return a tensor's place among the tensors, None for what is to be pickled."""
        if (
            type(obj) is not Tensor
            or obj.layout is not torch.strided
            or obj.is_quantized
            or obj.is_meta
        ):
            return None
        if id(obj) not in self._places:
            self._places[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self._places[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: int) -> Tensor:
        """Return the tensor with that place."""
        return self._tensors[pid]


def serialize(value: Any) -> Tensor:
    """Return a value as uint8, on the device of its tensors; on the CPU if they are on several.

    Raises:
        Exception: what pickling raises for a part that is no tensor and cannot be pickled.

    >>> deserialize(serialize({"n": 3, "parts": [torch.ones(2), torch.zeros(0)]}))
    {'n': 3, 'parts': [tensor([1., 1.]), tensor([])]}
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    tensors = pickler.tensors
    specs = [LeafSpec.of("", x) for x in tensors]
    form = pickle.dumps((file.getvalue(), specs))
    size = align(len(form))
    head = from_bytes(_HEAD.pack(size, 0) + form.ljust(size, b"\0"))
    devices = {x.device for x in tensors}
    device = devices.pop() if len(devices) == 1 else head.device
    return torch.cat([head.to(device), pack(tensors, layout(tensors), device)])


def deserialize(run: Tensor) -> Any:
    """Return what :func:`serialize` was given; tensors are new, on the device of ``run``."""
    run = run.clone()  # values may be changed in place; and it starts where a view as any dtype may
    size, _ = _HEAD.unpack(to_bytes(run[: _HEAD.size]))
    form, specs = pickle.loads(to_bytes(run[_HEAD.size : _HEAD.size + size]))  # noqa: S301  (of our own ranks)
    tensors = unpack(run[_HEAD.size + size :], layout(specs))
    return _Unpickler(io.BytesIO(form), tensors).load()
