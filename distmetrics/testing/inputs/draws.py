"""How batches are drawn: a string of bytes a sample, so that drawing is quick and samples can go.

A byte is mapped to a value by the strategy that asks for it, 0 to the plainest one. Numbers lie on
a grid that every float dtype holds exactly, so they get their dtype at the end.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypedDict

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from distmetrics.errors import InputError, InputTypeError
from distmetrics.tree import map_leaves

Batches = list[tuple[Any, ...]]
Build = Callable[[Tensor], tuple[Any, ...]]
_LEVELS = 16  # steps between two whole numbers
_DISTINCT = 64  # and where no two numbers may be equal: bfloat16 holds multiples of 1/64 up to 2


class Options(TypedDict, total=False):
    """How many batches, of how many samples, and the dtype of their floats.

    By default a batch has at least one sample.
    """

    min_batches: int
    max_batches: int
    min_samples: int
    max_samples: int
    dtype: torch.dtype


def batch_lists(build: Build, cells: int, options: Options) -> SearchStrategy[Batches]:
    """Lists of batches, each a tuple of arguments of ``update``.

    Args:
        build: makes the arguments of all samples together, of bytes of shape ``(samples, cells)``;
            each argument is a tensor or a list with one row or item a sample.
        cells: bytes a sample.
        options: how many batches, of how many samples; the dtype of floats.
    """
    if unknown := options.keys() - Options.__annotations__.keys():
        known = ", ".join(Options.__annotations__)
        raise InputTypeError(f"{min(unknown)!r} is no option; options are {known}")
    batches = options.get("min_batches", 1), options.get("max_batches", 5)
    samples = options.get("min_samples", 1), options.get("max_samples", 6)
    if any(not 0 <= least <= most or not most for least, most in (batches, samples)):
        raise InputError(
            "batches and samples need bounds with 0 ≤ min ≤ max and max > 0, got "
            "{} to {} batches of {} to {} samples".format(*batches, *samples)
        )
    sample = st.binary(min_size=cells, max_size=cells)
    batch = st.lists(sample, min_size=samples[0], max_size=samples[1])
    drawn = st.lists(batch, min_size=batches[0], max_size=batches[1])
    dtype = options.get("dtype", torch.float32)

    def finished(leaf: Any) -> Any:
        """Return a leaf of a batch as a tensor of its own."""
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(dtype if leaf.is_floating_point() else leaf.dtype, copy=True)

    def built(strings: list[list[bytes]]) -> Batches:
        """Build all samples in one go, then cut them into batches: that takes few operations."""
        numbers = list(b"".join(map(b"".join, strings)))
        rows = torch.tensor(numbers, dtype=torch.int64).reshape(-1, cells)
        arguments = build(rows)
        ends = pairwise(accumulate(map(len, strings), initial=0))
        cut = [tuple(argument[start:end] for argument in arguments) for start, end in ends]
        return map_leaves(finished, cut)

    return drawn.map(built)


def check_count(name: str, count: int, least: int) -> None:
    """Refuse a count that is too small."""
    if count < least:
        raise InputError(f"{name} must be {least} or more, got {count}")


def scaled(cells: Tensor, ties: bool = True) -> Tensor:
    """Return numbers from 0 to 1 in equal steps; without ties in as many steps as it takes."""
    if ties:
        return cells % (_LEVELS + 1) / _LEVELS
    steps = max(_DISTINCT, 1 << max(0, cells.numel() - 1).bit_length())
    taken: dict[int, None] = {}  # each number has the step it names, or the next free one
    for step in (cells % steps).flatten().tolist():
        while step in taken:
            step = (step + 1) % steps
        taken[step] = None
    return torch.tensor(list(taken)).reshape(cells.shape) / steps


def simplex(cells: Tensor) -> Tensor:
    """Return rows of numbers that sum to exactly 1, with one number more than ``cells`` has."""
    cuts = (cells % (_LEVELS + 1)).sort(dim=1, descending=True).values
    edge = cuts.new_zeros(len(cuts), 1)
    bounds = torch.cat([edge + _LEVELS, cuts, edge], dim=1)
    return -torch.diff(bounds) / _LEVELS


def one_of(cells: Tensor, values: Sequence[float]) -> Tensor:
    """Return for each byte one of the values, the first for 0."""
    return torch.tensor(values)[cells % len(values)]


def grid(low: float, high: float) -> list[float]:
    """Return the numbers from ``low`` to ``high`` in equal steps, those nearest to 0 first."""
    count = max(0, int((high - low) * _LEVELS + 1))
    if not 0 < count <= 256:
        raise InputError(f"low={low} and high={high} make {count} numbers; there must be 1 to 256")
    numbers = [low + step / _LEVELS for step in range(count)]
    return sorted(numbers, key=lambda number: (abs(number), -number))
