"""Tensors of many dtypes and shapes in one run of bytes, and back. Pure.

Tensors that share a key (their dtype, and for reductions the operation) lie side by side in one
bucket, so that a bucket is one ``torch.cat`` to build and one operation to reduce, however many
tensors it holds.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

_device_of = operator.attrgetter("device")
ALIGN = 16  # the widest element, complex128: a view as any dtype may start at any bucket


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors of one dtype that lie side by side, those of one shape next to each other.

    Attributes:
        dtype: of all of them.
        key: what else they share.
        members: their places in the list that was laid out.
        groups: ``(shape, count, elements)`` of each run of equal shapes, in the order of
            ``members``.
        start: first byte in the run; ``stop``: the byte after the last.
        pick: takes the members out of the list that was laid out.
        cuts: sizes of the runs that the elements are cut into: each vector, and all members of
            another shape together.
    """

    dtype: torch.dtype
    key: Hashable
    members: tuple[int, ...]
    groups: tuple[tuple[tuple[int, ...], int, int], ...]
    start: int
    stop: int
    pick: Callable[[Sequence[Tensor]], Sequence[Tensor]] = field(
        init=False, compare=False, repr=False
    )
    cuts: list[int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        first, *others = self.members
        places = (
            self.members if others else (slice(first, first + 1),)
        )  # always a sequence, also of one
        object.__setattr__(self, "pick", operator.itemgetter(*places))
        cuts = [
            [size // count] * count if len(shape) == 1 else [size]
            for shape, count, size in self.groups
        ]
        object.__setattr__(self, "cuts", list(itertools.chain.from_iterable(cuts)))

    @property
    def elements(self) -> int:
        """How many there are in all members together."""
        return (self.stop - self.start) // self.dtype.itemsize

    def view(self, run: Tensor) -> Tensor:
        """This bucket's elements in the byte run ``run``, not copied."""
        return run[self.start : self.stop].view(self.dtype)

    def fill(self, view: Tensor, tensors: Sequence[Tensor]) -> None:
        """Copy the members' tensors, given in their order, to their places in ``view``: this
        bucket's of a run.
        """
        flat: list[Tensor] = []
        start = 0
        for shape, count, _ in self.groups:  # vectors need nothing, the rest one operation a shape
            group = tensors[start : start + count]
            flat += (
                group
                if len(shape) == 1
                else [torch.cat([*group]).reshape(-1) if shape else torch.stack([*group])]
            )
            start += count
        if flat[0].device == view.device:
            torch.cat(flat, out=view)
        else:
            view.copy_(torch.cat(flat))  # one transfer, not one a tensor

    def split(self, elements: Tensor) -> list[Tensor]:
        """Cut ``[*lead, n]`` into ``[*lead, *shape]`` for each member in order.

        One operation for all vectors together, which are the most, and one for each other shape.
        """
        # "Unsafe" only where a gradient flows, which it does not here; takes less time than the
        # safe one.
        runs = torch.unsafe_split_with_sizes(elements, self.cuts, dim=-1)
        parts: list[Tensor] = []
        lead = elements.shape[:-1]
        at = 0
        for shape, count, _ in self.groups:
            if len(shape) == 1:
                parts += runs[at : at + count]
                at += count
            else:
                parts += runs[at].reshape(*lead, count, *shape).unbind(len(lead))
                at += 1
        return parts


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies: the buckets, each tensor's shape, the number of bytes."""

    buckets: tuple[Bucket, ...]
    shapes: tuple[tuple[int, ...], ...]
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
    buckets: dict[Hashable, dict[tuple[int, ...], list[int]]] = {}
    for index, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True)):
        by_shape = buckets.setdefault((dtype, None if keys is None else keys[index]), {})
        by_shape.setdefault(tuple(shape), []).append(index)
    placed: list[Bucket] = []
    start = 0
    for by_shape in buckets.values():
        members = tuple(index for same in by_shape.values() for index in same)
        groups = tuple(
            (shape, len(same), len(same) * math.prod(shape)) for shape, same in by_shape.items()
        )
        dtype, key = dtypes[members[0]], None if keys is None else keys[members[0]]
        stop = start + dtype.itemsize * sum(size for _, _, size in groups)
        placed.append(Bucket(dtype, key, members, groups, start, stop))
        start = -(-stop // ALIGN) * ALIGN
    return Layout(tuple(placed), tuple(shapes), start)


def pack(
    tensors: Sequence[Tensor],
    where: Layout,
    device: torch.device,
    *,
    together: bool = False,
    into: Tensor | None = None,
) -> Tensor:
    """Copy tensors into one uint8 run on ``device``, as ``where`` says.

    ``together``: the tensors are known to be on one device, and need not be asked; ``into``: the
    run, if there is one.
    """
    run = torch.zeros(where.nbytes, dtype=torch.uint8, device=device) if into is None else into
    if not where.buckets:
        return run
    with torch.no_grad():
        for bucket in where.buckets:
            parts = bucket.pick(tensors)
            if not together and len(set(map(_device_of, parts))) > 1:
                parts = [x.to(device) for x in parts]
            bucket.fill(bucket.view(run), parts)
    return run


def unpack(run: Tensor, where: Layout) -> list[Tensor]:
    """Return the tensors of a run as views of it, in the order in which they were laid out."""
    tensors: list[Tensor] = [run] * len(where.shapes)
    for bucket in where.buckets:
        for index, part in zip(bucket.members, bucket.split(bucket.view(run)), strict=True):
            tensors[index] = part
    return tensors
