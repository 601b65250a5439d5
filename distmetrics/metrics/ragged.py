"""Lists of tensors as one tensor that can be sent, and back: items unbroken, in order. Pure.

Most hold numbers, or rows of one width (boxes, scores, labels of an image each). Those are joined
and cut by one operation, however many they are; any other list item by item. The sizes that the
cutting needs travel as a tensor too, for there may be thousands of items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def join(items: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Join a list of at least one tensor, all of one dtype.

    Returns: all elements; and the sizes, int64: nothing for numbers, the length of each item for
        rows, else ``[dimensions, *shape, 0…]`` of each.
    """
    shapes = [item.shape for item in items]
    most = max(map(len, shapes))
    if most == 0:
        return torch.stack(list(items)), None
    if len({(len(shape), shape[1:]) for shape in shapes}) == 1:
        lengths = torch.tensor([shape[0] for shape in shapes], device="cpu")
        return torch.cat(list(items)), lengths
    sizes = [[len(shape), *shape, *[0] * (most - len(shape))] for shape in shapes]
    joined = torch.cat([item.reshape(-1) for item in items])
    return joined, torch.tensor(sizes, device="cpu")


def cut(elements: Tensor, sizes: Tensor | None) -> list[Tensor]:
    """Return the items that :func:`join` joined, as views of ``elements``."""
    if sizes is None:
        return list(elements.unbind())
    if sizes.ndim == 1:
        return list(elements.split_with_sizes(sizes.tolist()))
    shapes = [row[1 : 1 + row[0]] for row in sizes.tolist()]
    pieces = elements.split_with_sizes([math.prod(shape) for shape in shapes])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
