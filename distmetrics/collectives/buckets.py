"""Tensors of many dtypes and shapes in one run of bytes, and back. Pure.

Tensors that share a key (their dtype, and for reductions the operation) lie side by side in one
bucket, so that a bucket is one ``torch.cat`` to build and one operation to reduce, however many
tensors it holds.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.message import LARGEST_DATA, Message, Shape, not_ours

# Whose elements bytes can be viewed as; quantized ones are read with more than their bytes.
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits"))
}
_PIECE = 1 << 30  # bytes: a count of ctypes has 32 bits
ALIGN = 16  # the widest element, complex128: a view as any dtype may start at any bucket


class Bucket(NamedTuple):
    """Tensors of one dtype that lie side by side."""

    dtype: torch.dtype
    key: str  # what else they share
    shapes: Mapping[int, tuple[int, ...]]  # by their places in the list that was laid out
    start: int  # bytes of the run
    stop: int

    def view(self, run: Tensor) -> Tensor:
        """Return this bucket's elements in the byte run ``run``, not copied."""
        if run.numel() < self.stop:
            raise not_ours(f"{run.numel()} bytes of data, of which {self.stop} were announced")
        return run[self.start : self.stop].view(self.dtype)

    def split(self, elements: Tensor) -> dict[int, Tensor]:
        """Cut elements into the tensors, as views, by their places."""
        parts = elements.split_with_sizes([*map(math.prod, self.shapes.values())])
        cut = zip(self.shapes.items(), parts, strict=True)
        return {i: x if len(shape) == 1 else x.view(shape) for (i, shape), x in cut}


class Layout(NamedTuple):
    """Where everything lies: the buckets, and the number of bytes."""

    buckets: tuple[Bucket, ...]
    nbytes: int


class LeafSpec(Message, frozen=True):
    """One tensor, and its place in the tree."""

    path: str
    dtype: str
    shape: Shape
    note: str = ""  # for people: the placements of a DTensor, say

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ValueError(f"{self.dtype[:40]!r} is not a dtype")
        if math.prod(size or 1 for size in self.shape) > LARGEST_DATA:
            raise ValueError(f"a tensor of the shape {self.shape}")

    @classmethod
    def of(cls, path: str, tensor: Tensor, note: str = "") -> LeafSpec:
        """Describe a tensor."""
        return cls(path, short_name(tensor.dtype), tuple(tensor.shape), note)

    def __str__(self) -> str:
        return f"{self.path} {self.dtype}{list(self.shape)} {self.note}".strip()


@functools.cache
def short_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype; :func:`dtype_of` reads it.

    >>> short_name(torch.bfloat16), dtype_of("bfloat16")
    ('bfloat16', torch.bfloat16)
    """
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Return the torch dtype of a short name; raise KeyError if it is none."""
    return _DTYPES[name]


def is_dtensor(x: Any) -> bool:
    """True for a DTensor."""
    return hasattr(x, "full_tensor")


@functools.cache
def unsendable(dtype: torch.dtype, form: torch.layout, is_meta: bool) -> tuple[str, str]:
    """Return why such tensors cannot be sent, and what to do; two empty texts if they can."""
    if form is not torch.strided:
        return f"has the layout {form}, and only dense tensors can be sent", "use x.to_dense()."
    if is_meta:
        return "is on the meta device, where tensors have no data", "make it on a real device."
    if short_name(dtype) not in _DTYPES:
        return f"is {short_name(dtype)}, which cannot be sent", "use x.dequantize()."
    return "", ""


def layout(tensors: Iterable[Any], keys: Sequence[str] | None = None) -> Layout:
    """Lay tensors out in buckets by (dtype, key), in order of first appearance.

    Of tensors only ``dtype`` and ``shape`` are read.

    >>> layout([torch.zeros(3, dtype=torch.int8), LeafSpec("", "float32", (2, 2))]).nbytes
    32
    """
    groups: dict[tuple[torch.dtype, str], dict[int, tuple[int, ...]]] = {}
    for index, tensor in enumerate(tensors):
        dtype = dtype_of(tensor.dtype) if isinstance(tensor.dtype, str) else tensor.dtype
        key = "" if keys is None else keys[index]
        groups.setdefault((dtype, key), {})[index] = tuple(tensor.shape)
    buckets = []
    start = 0
    for (dtype, key), shapes in groups.items():
        stop = start + dtype.itemsize * sum(map(math.prod, shapes.values()))
        buckets.append(Bucket(dtype, key, shapes, start, stop))
        start = -(-stop // ALIGN) * ALIGN
    return Layout(tuple(buckets), start)


def pack(tensors: Sequence[Tensor], where: Layout, device: torch.device) -> Tensor:
    """Copy tensors into one uint8 run on ``device``, as ``where`` says."""
    run = torch.zeros(where.nbytes, dtype=torch.uint8, device=device)
    with torch.no_grad():
        for bucket in where.buckets:
            parts = [tensors[index] for index in bucket.shapes]
            if len({part.device for part in parts}) > 1:
                parts = [part.to(device) for part in parts]
            # Joined where they are, so that it is one transfer and not one a tensor.
            flat = [part if part.ndim == 1 else part.reshape(-1) for part in parts]
            bucket.view(run).copy_(torch.cat(flat))
    return run


def unpack(run: Tensor, where: Layout) -> list[Tensor]:
    """Return the tensors of a run as views of it, in the order in which they were laid out."""
    tensors: dict[int, Tensor] = {}
    for bucket in where.buckets:
        tensors |= bucket.split(bucket.view(run))
    return [tensors[index] for index in range(len(tensors))]


def from_bytes(data: bytes) -> Tensor:
    """Return bytes as a run of uint8 in memory of its own."""
    if not data:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def to_bytes(run: Tensor) -> bytes:
    """Copy a run of uint8, or a tensor's bytes, out of torch."""
    run = run.cpu().contiguous()  # kept in a name: the address below is only good while it lives
    address, size = run.data_ptr(), run.nbytes
    starts = range(0, size, _PIECE)
    return b"".join([ctypes.string_at(address + i, min(_PIECE, size - i)) for i in starts])


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return a dtype in which reducing loses nothing, and that transports know."""
    if dtype.is_complex:
        return torch.promote_types(dtype, torch.complex64)
    if dtype.is_floating_point:
        return torch.float64 if dtype == torch.float64 else torch.float32
    return torch.int64
