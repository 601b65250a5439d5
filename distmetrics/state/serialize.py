"""Values as tensors that can be sent, and back: anything, and lists of tensors. Pure.

Of any value, tensors' data travels as it is, and the rest pickled. Lists of tensors become one
tensor, items unbroken, in order. Most are of one form: numbers, or rows of one width (boxes,
scores, labels of an image each). Those are joined and cut by one operation, however many they are;
any other list item by item. What the cutting needs to know beyond the form travels as a tensor too,
for there may be thousands of items.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import struct
from collections.abc import Sequence
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


def join(items: Sequence[Tensor]) -> tuple[Tensor, str, Tensor | None]:
    """Join a list of at least one tensor, all of one dtype.

    Returns: all elements, 1-dim; the form: "numbers", "rows [*width]" or "any"; and the sizes,
        int64: the length of each item for rows, ``[dimensions, *shape, 0…]`` of each for any,
            nothing for numbers.

    >>> join([torch.zeros(2, 3), torch.zeros(1, 3)])[1:]
    ('rows [3]', tensor([2, 1]))
    """
    shapes = [item.shape for item in items]
    dims = set(map(len, shapes))
    if dims == {0}:
        return torch.stack(list(items)), "numbers", None
    widths = {shape[1:] for shape in shapes}
    if len(dims) == 1 and len(widths) == 1:
        form = f"rows {json.dumps(widths.pop())}"
        lengths = torch.tensor([shape[0] for shape in shapes], device="cpu")
        return torch.cat(list(items)).reshape(-1), form, lengths
    most = max(dims)
    sizes = [[len(shape), *shape, *[0] * (most - len(shape))] for shape in shapes]
    joined = torch.cat([item.reshape(-1) for item in items])
    return joined, "any", torch.tensor(sizes, device="cpu")


def cut(elements: Tensor, form: str, sizes: Tensor | None) -> list[Tensor]:
    """Return the items that :func:`join` joined, as views of ``elements``.

    >>> [item.shape for item in cut(torch.zeros(9), "rows [3]", torch.tensor([2, 1]))]
    [torch.Size([2, 3]), torch.Size([1, 3])]
    """
    if sizes is None:
        return list(elements.unbind())
    known = sizes.tolist()
    kind, _, width = form.partition(" ")
    if kind == "rows":
        rows = elements.reshape(sum(known), *json.loads(width))
        return list(rows.split_with_sizes(known))
    shapes = [row[1 : 1 + row[0]] for row in known]
    pieces = elements.split_with_sizes([math.prod(shape) for shape in shapes])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
