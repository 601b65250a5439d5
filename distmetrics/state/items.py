"""Lists of tensors as one tensor, and back: items unbroken, in order. Pure.

Most lists are of one form: numbers, or rows of one width (boxes, scores, labels of an image each).
Those are joined and cut by one operation, however many they are; any other list item by item. What
the cutting needs to know beyond the form travels as a tensor too, for there may be thousands of
items.
"""

from __future__ import annotations

import json
import math
import operator
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_shape_of, _ndim_of = operator.attrgetter("shape"), operator.attrgetter("ndim")
_version_of = operator.attrgetter("_version")


class Owned(NamedTuple):
    """This rank's items of a list that are in the list of all ranks as they are, and what they were
    made of.

    Attributes:
        items: the tensors.
        joined: their elements, copied; ``form`` and ``sizes`` as of :func:`join`.
        versions: of all of them together: torch counts each change in place.
    """

    items: list[Tensor]
    joined: Tensor
    form: str
    sizes: Tensor | None
    versions: int

    @classmethod
    def of(
        cls, items: list[Tensor], joined: Tensor, form: str, sizes: Tensor | None
    ) -> Owned | None:
        """Return them, or None where changes of a tensor are not counted, as in inference mode."""
        try:
            return cls(items, joined, form, sizes, sum(map(_version_of, items)))
        except RuntimeError:  # "Inference tensors do not track version counter"
            return None

    def put_back(self) -> None:
        """Give the items their elements again, if somebody has changed one in place."""
        if sum(map(_version_of, self.items)) == self.versions:
            return
        with torch.no_grad():
            for item, kept in zip(self.items, cut(self.joined, self.form, self.sizes), strict=True):
                if item.shape == kept.shape and item.dtype == kept.dtype:
                    item.copy_(kept)
                else:
                    item.data = kept.clone()


def join(items: Sequence[Tensor]) -> tuple[Tensor, str, Tensor | None]:
    """Join a list of at least one tensor, all of one dtype.

    Returns: all elements, 1-dim; the form: "numbers", "rows [*width]" or "any"; and the sizes,
        int64: the length of each item for rows, ``[dimensions, *shape, 0…]`` of each for any,
            nothing for numbers.

    >>> join([torch.zeros(2, 3), torch.zeros(1, 3)])[1:]
    ('rows [3]', tensor([2, 1]))
    """
    if items[0].ndim == 1 and (joined := _vectors(items)) is not None:
        return joined, "rows []", _sizes(map(Tensor.numel, items))
    dims = set(map(_ndim_of, items))
    if dims == {0}:
        return torch.stack(list(items)), "numbers", None
    shapes = [*map(_shape_of, items)]
    if len(dims) == 1:
        lengths, *widths = zip(*shapes, strict=True)  # a column for each dimension
        if all(len(set(column)) == 1 for column in widths):
            form = f"rows {json.dumps([column[0] for column in widths])}"
            return torch.cat(list(items)).reshape(-1), form, _sizes(lengths)
    most = max(dims)
    sizes = torch.tensor([[len(shape), *shape, *[0] * (most - len(shape))] for shape in shapes])
    return torch.cat([item.reshape(-1) for item in items]), "any", sizes


def _vectors(items: Sequence[Tensor]) -> Tensor | None:
    """Join vectors, None where not all are: scores and labels, of which there are the most, in half
    the time.

    To ask thousands of tensors that the processor has not at hand for their dimensions takes as
    long as to join them.
    """
    try:
        joined = torch.cat(list(items))
    except RuntimeError:  # some are no vectors: item by item then
        return None
    return (
        joined if joined.ndim == 1 else None
    )  # torch leaves empty vectors out where it joins matrices


def _sizes(lengths: Iterable[int]) -> Tensor:
    return torch.frombuffer(array("q", lengths), dtype=torch.int64)


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
        # "Unsafe" only where a gradient flows, which it does not here; takes less time than the
        # safe one.
        return list(
            torch.unsafe_split_with_sizes(elements.reshape(sum(known), *json.loads(width)), known)
        )
    shapes = [row[1 : 1 + row[0]] for row in known]
    pieces = elements.split_with_sizes([math.prod(shape) for shape in shapes])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
