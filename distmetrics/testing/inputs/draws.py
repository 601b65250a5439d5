"""How batches are drawn: a string of bytes a sample, so that drawing is quick and samples can go.

A byte is mapped to a value by the strategy that asks for it, 0 to the plainest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypedDict

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from distmetrics.errors import InputError, InputTypeError

Batches = list[tuple[Any, ...]]
Build = Callable[[Tensor], tuple[Any, ...]]
# Between 0 and 1: every float dtype holds multiples of 1/64 up to 2 exactly, bfloat16 too.
_STEPS = 64


class Sizes(TypedDict, total=False):
    """How many batches, of how many samples; by default a batch has at least one sample."""

    min_batches: int
    max_batches: int
    min_samples: int
    max_samples: int


def batch_lists(build: Build, cells: int, sizes: Sizes) -> SearchStrategy[Batches]:
    """Lists of batches, each a tuple of arguments of ``update``.

    Args:
        build: makes the arguments of all samples together, of bytes of shape ``(samples, cells)``;
            each argument is a tensor or a list with one row or item a sample.
        cells: bytes a sample.
        sizes: how many batches, of how many samples.
    """
    if unknown := sizes.keys() - Sizes.__annotations__.keys():
        options = ", ".join(Sizes.__annotations__)
        raise InputTypeError(f"{min(unknown)!r} is no option; sizes are {options}")
    batches = sizes.get("min_batches", 1), sizes.get("max_batches", 5)
    samples = sizes.get("min_samples", 1), sizes.get("max_samples", 6)
    if any(not 0 <= least <= most or not most for least, most in (batches, samples)):
        raise InputError(
            "batches and samples need bounds with 0 ≤ min ≤ max and max > 0, got "
            "{} to {} batches of {} to {} samples".format(*batches, *samples)
        )
    sample = st.binary(min_size=cells, max_size=cells)
    batch = st.lists(sample, min_size=samples[0], max_size=samples[1])
    drawn = st.lists(batch, min_size=batches[0], max_size=batches[1])
    return drawn.map(lambda strings: _built(build, cells, strings))


def _built(build: Build, cells: int, strings: list[list[bytes]]) -> Batches:
    """Build all samples in one go, then cut them into batches: that takes few operations."""
    numbers = list(b"".join(map(b"".join, strings)))
    arguments = build(torch.tensor(numbers, dtype=torch.int64).reshape(-1, cells))
    ends = pairwise(accumulate(map(len, strings), initial=0))
    return [
        tuple(
            argument[start:end].clone() if isinstance(argument, Tensor) else argument[start:end]
            for argument in arguments
        )
        for start, end in ends
    ]


def check_count(name: str, count: int, least: int) -> None:
    """Refuse a count that is too small."""
    if count < least:
        raise InputError(f"{name} must be {least} or more, got {count}")


def check_levels(levels: int) -> None:
    """Refuse steps between 0 and 1 that some float dtype cannot hold."""
    if levels not in (1, 2, 4, 8, 16, 32, _STEPS):
        raise InputError(f"levels must be a power of two from 1 to {_STEPS}, got {levels}")


def scaled(cells: Tensor, levels: int, dtype: torch.dtype, ties: bool = True) -> Tensor:
    """Return numbers from 0 to 1 in ``levels`` steps; without ties in as many steps as it takes."""
    if ties:
        return (cells % (levels + 1)).to(dtype) / levels
    steps = max(_STEPS, 1 << max(0, cells.numel() - 1).bit_length())
    taken: dict[int, None] = {}  # each number has the step it names, or the next free one
    for step in (cells % steps).flatten().tolist():
        while step in taken:
            step = (step + 1) % steps
        taken[step] = None
    return torch.tensor(list(taken), dtype=dtype).reshape(cells.shape) / steps


def simplex(cells: Tensor, levels: int, dtype: torch.dtype) -> Tensor:
    """Return rows of numbers in steps of ``1 / levels`` that sum to exactly 1.

    A row has one number more than ``cells`` has columns.
    """
    cuts = (cells % (levels + 1)).sort(dim=1, descending=True).values
    edge = cuts.new_zeros(len(cuts), 1)
    steps = -torch.diff(torch.cat([edge + levels, cuts, edge], dim=1))
    return steps.to(dtype) / levels


def one_of(cells: Tensor, values: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Return for each byte one of the values, the first for 0."""
    return torch.tensor(values, dtype=dtype)[cells % len(values)]


def grid(low: float, high: float, levels: int) -> list[float]:
    """Return the numbers from ``low`` to ``high`` in steps, those nearest to 0 first."""
    check_levels(levels)
    count = max(0, int((high - low) * levels + 1))
    if not 0 < count <= 256:
        raise InputError(
            f"low={low}, high={high} and levels={levels} make {count} numbers; there "
            "must be 1 to 256"
        )
    numbers = [low + step / levels for step in range(count)]
    return sorted(numbers, key=lambda number: (abs(number), -number))
