"""Lists of tensors as one tensor that can be sent, and back: items unbroken, in order. Pure.

Most are of one form: numbers, or rows of one width (boxes, scores, labels of an image each). Those
are joined and cut by one operation, however many they are; any other list item by item. What the
cutting needs to know beyond the form travels as a tensor too, for there may be thousands of items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from distmetrics.message import Message, Shape


class Form(Message, frozen=True):
    """What the items of a list have in common: numbers, rows of one width, or nothing."""

    kind: Literal["numbers", "rows", "any"]
    width: Shape = ()

    def __str__(self) -> str:
        return f"rows {list(self.width)}" if self.kind == "rows" else self.kind


def join(items: Sequence[Tensor]) -> tuple[Tensor, Form, Tensor | None]:
    """Join a list of at least one tensor, all of one dtype.

    Returns: all elements, 1-dim; the form; and the sizes, int64: the length of each item for rows,
        ``[dimensions, *shape, 0…]`` of each for any, nothing for numbers.

    >>> join([torch.zeros(2, 3), torch.zeros(1, 3)])[1:]
    (Form(kind='rows', width=(3,)), tensor([2, 1]))
    """
    shapes = [item.shape for item in items]
    dims = set(map(len, shapes))
    if dims == {0}:
        return torch.stack(list(items)), Form("numbers"), None
    widths = {shape[1:] for shape in shapes}
    if len(dims) == 1 and len(widths) == 1:
        lengths = torch.tensor([shape[0] for shape in shapes], device="cpu")
        return torch.cat(list(items)).reshape(-1), Form("rows", tuple(widths.pop())), lengths
    most = max(dims)
    sizes = [[len(shape), *shape, *[0] * (most - len(shape))] for shape in shapes]
    joined = torch.cat([item.reshape(-1) for item in items])
    return joined, Form("any"), torch.tensor(sizes, device="cpu")


def cut(elements: Tensor, form: Form, sizes: Tensor | None) -> list[Tensor]:
    """Return the items that :func:`join` joined, as views of ``elements``.

    >>> [item.shape for item in cut(torch.zeros(9), Form("rows", (3,)), torch.tensor([2, 1]))]
    [torch.Size([2, 3]), torch.Size([1, 3])]
    """
    if sizes is None:
        return list(elements.unbind())
    known = sizes.tolist()
    if form.kind == "rows":
        rows = elements.reshape(sum(known), *form.width)
        return list(rows.split_with_sizes(known))
    shapes = [row[1 : 1 + row[0]] for row in known]
    pieces = elements.split_with_sizes([math.prod(shape) for shape in shapes])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
