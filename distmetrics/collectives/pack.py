"""Tensors of many dtypes and shapes in one run of bytes, and back. Pure.

Tensors that share a key (their dtype, and for reductions the operation) lie side by side in one
bucket, so that a bucket is one ``torch.cat`` to build and one operation to reduce, however many
tensors it holds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGN = 16  # the widest element, complex128: a view as any dtype may start at any bucket


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors of one dtype that lie side by side.

    Attributes:
        dtype: of all of them.
        key: what else they share.
        members: their places in the list that was laid out.
        shapes: theirs, in the order of ``members``.
        start: first byte in the run; ``stop``: the byte after the last.
    """

    dtype: torch.dtype
    key: Hashable
    members: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    start: int
    stop: int

    def view(self, run: Tensor) -> Tensor:
        """Return this bucket's elements in the byte run ``run``, not copied."""
        return run[self.start : self.stop].view(self.dtype)

    def split(self, elements: Tensor) -> list[Tensor]:
        """Cut ``[*lead, n]`` into ``[*lead, *shape]`` for each member in order, as views."""
        sizes = [math.prod(shape) for shape in self.shapes]
        lead = elements.shape[:-1]
        parts = elements.split_with_sizes(sizes, dim=-1)
        return [
            part if len(shape) == 1 else part.reshape((*lead, *shape))
            for part, shape in zip(parts, self.shapes, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies: the buckets, the number of tensors, the number of bytes."""

    buckets: tuple[Bucket, ...]
    count: int
    nbytes: int


def dtype_of(name: str) -> torch.dtype:
    """Return the torch dtype of a short name.

    >>> dtype_of("bfloat16")
    torch.bfloat16
    """
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def layout(
    dtypes: Sequence[torch.dtype],
    shapes: Sequence[tuple[int, ...]],
    keys: Sequence[Hashable] | None = None,
) -> Layout:
    """Lay tensors out in buckets by (dtype, key), in order of first appearance.

    >>> layout([torch.int8, torch.float32, torch.int8], [(3,), (2, 2), ()]).nbytes
    32
    """
    members: dict[tuple[torch.dtype, Hashable], list[int]] = {}
    for index, dtype in enumerate(dtypes):
        members.setdefault((dtype, None if keys is None else keys[index]), []).append(index)
    buckets: list[Bucket] = []
    start = 0
    for (dtype, key), places in members.items():
        own = tuple(tuple(shapes[index]) for index in places)
        stop = start + dtype.itemsize * sum(map(math.prod, own))
        buckets.append(Bucket(dtype, key, tuple(places), own, start, stop))
        start = -(-stop // ALIGN) * ALIGN
    return Layout(tuple(buckets), len(shapes), start)


def pack(tensors: Sequence[Tensor], where: Layout, device: torch.device) -> Tensor:
    """Copy tensors into one uint8 run on ``device``, as ``where`` says."""
    run = torch.zeros(where.nbytes, dtype=torch.uint8, device=device)
    with torch.no_grad():
        for bucket in where.buckets:
            parts = [tensors[index] for index in bucket.members]
            if len({part.device for part in parts}) > 1:
                parts = [part.to(device) for part in parts]
            # Joined where they are, so that it is one transfer and not one a tensor.
            bucket.view(run).copy_(torch.cat([part.reshape(-1) for part in parts]))
    return run


def unpack(run: Tensor, where: Layout) -> list[Tensor]:
    """Return the tensors of a run as views of it, in the order in which they were laid out."""
    tensors: list[Tensor] = [run] * where.count
    for bucket in where.buckets:
        for index, part in zip(bucket.members, bucket.split(bucket.view(run)), strict=True):
            tensors[index] = part
    return tensors
