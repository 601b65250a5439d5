"""How batches are drawn: a string of bytes a sample, so that drawing is quick, and samples can go
while others stay.

A byte is mapped to a value by the strategy that asks for it, 0 to the plainest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from distmetrics.errors import InputError, InputTypeError

Batches = list[tuple[Any, ...]]
Build = Callable[[Tensor], tuple[Any, ...]]
_STEPS = (
    64  # between 0 and 1: every float dtype holds multiples of 1/64 up to 2 exactly, bfloat16 too
)


class Sizes(TypedDict, total=False):
    """How many batches, of how many samples: a batch has at least one sample unless it is said
    otherwise.
    """

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
    (min_batches, max_batches), (min_samples, max_samples) = _bounds(sizes)
    if (
        not 0 <= min_batches <= max_batches
        or not 0 <= min_samples <= max_samples
        or not max_batches * max_samples
    ):
        raise InputError(
            "batches and samples need bounds with 0 ≤ min ≤ max and max > 0, got "
            f"{min_batches} to {max_batches} batches of {min_samples} to {max_samples} samples"
        )
    sample = st.binary(min_size=cells, max_size=cells)
    batch = st.lists(sample, min_size=min_samples, max_size=max_samples)

    def arguments(drawn: list[list[bytes]]) -> Batches:
        return _dealt(build, cells, drawn)

    return st.lists(batch, min_size=min_batches, max_size=max_batches).map(arguments)


def _bounds(sizes: Sizes) -> tuple[tuple[int, int], tuple[int, int]]:
    if unknown := sizes.keys() - Sizes.__annotations__.keys():
        raise InputTypeError(
            f"{min(unknown)!r} is no option; sizes are {', '.join(Sizes.__annotations__)}"
        )
    batches = sizes.get("min_batches", 1), sizes.get("max_batches", 5)
    samples = sizes.get("min_samples", 1), sizes.get("max_samples", 6)
    return batches, samples


def _dealt(build: Build, cells: int, drawn: list[list[bytes]]) -> Batches:
    """Build all samples in one go, then cut them into batches: a few operations however many
    batches there are.
    """
    sizes = list(map(len, drawn))
    rows = torch.tensor(list(b"".join(map(b"".join, drawn))), dtype=torch.int64).reshape(-1, cells)
    columns = [_cut(argument, sizes) for argument in build(rows)]
    return list(zip(*columns, strict=True))


def _cut(argument: Tensor | Sequence[Any], sizes: list[int]) -> list[Any]:
    if isinstance(argument, Tensor):
        return [part.clone() for part in torch.split(argument, sizes)]
    pieces, start = [], 0
    for size in sizes:
        pieces.append(list(argument[start : start + size]))
        start += size
    return pieces


def count_checked(name: str, count: int, least: int) -> int:
    """Return ``count`` if it is not too small."""
    if count < least:
        raise InputError(f"{name} must be {least} or more, got {count}")
    return count


def levels_checked(levels: int) -> int:
    """Return ``levels`` if the steps between 0 and 1 are some that all float dtypes hold."""
    if levels not in (1, 2, 4, 8, 16, 32, _STEPS):
        raise InputError(f"levels must be a power of two from 1 to {_STEPS}, got {levels}")
    return levels


def scaled(cells: Tensor, levels: int, dtype: torch.dtype, ties: bool = True) -> Tensor:
    """Return numbers from 0 to 1 in ``levels`` steps; without ties in as many steps as it takes."""
    if ties:
        return (cells % (levels + 1)).to(dtype) / levels
    steps = max(_STEPS, 1 << max(0, cells.numel() - 1).bit_length())
    return _spread(cells % steps, steps).to(dtype) / steps


def _spread(wishes: Tensor, places: int) -> Tensor:
    """Give every wish a place of its own: the one it names, or the next free one."""
    taken: dict[int, None] = {}
    for wish in wishes.flatten().tolist():
        taken[
            next(place for step in range(places) if (place := (wish + step) % places) not in taken)
        ] = None
    return torch.tensor(list(taken), dtype=wishes.dtype).reshape(wishes.shape)


def simplex(cells: Tensor, levels: int, dtype: torch.dtype) -> Tensor:
    """Return rows of one number more than ``cells`` has columns, that sum to exactly 1 in steps of
    ``1 / levels``.
    """
    cuts = (cells % (levels + 1)).sort(dim=1, descending=True).values
    edge = cuts.new_zeros(len(cuts), 1)
    ends = torch.cat([edge + levels, cuts, edge], dim=1)
    return (ends[:, :-1] - ends[:, 1:]).to(dtype) / levels


def one_of(cells: Tensor, values: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Return for each byte one of the values, the first for 0."""
    table = torch.tensor(values, dtype=dtype)
    return table.take(cells % len(values))


def grid(low: float, high: float, levels: int) -> list[float]:
    """Return the numbers from ``low`` to ``high`` in steps, those nearest to 0 first."""
    count = int((high - low) * levels) + 1 if high >= low else 0
    if not 0 < count <= 256:
        raise InputError(
            f"low={low}, high={high} and levels={levels} make {max(count, 0)} numbers; there "
            "must be 1 to 256"
        )
    return sorted(
        (low + step / levels for step in range(count)), key=lambda number: (abs(number), -number)
    )
