"""How batches are dealt to ranks: shapes that are always tried, and hypothesis strategies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from distmetrics.errors import InputError, optional
from distmetrics.testing.batches import (
    Batch,
    Shards,
    as_batch,
    changed_floats,
    count,
    identities,
    join,
    take,
)

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = [
    "deal",
    "hash_seeds",
    "low_precision",
    "padded",
    "partitions",
    "shapes",
]
_MOST = 8  # ranks of a world that a shape may ask for


def deal(batches: Sequence[Batch], ranks: Sequence[int], world_size: int) -> Shards:
    """Deal batch i to rank ``ranks[i]``.

    >>> [len(shard) for shard in deal([Batch(), Batch(), Batch()], [0, 2, 0], 3)]
    [2, 0, 1]
    """
    shards: list[list[Batch]] = [[] for _ in range(world_size)]
    for batch, rank in zip(batches, ranks, strict=True):
        shards[rank].append(batch)
    return tuple(map(tuple, shards))


def in_turn(batches: Sequence[Batch], world_size: int) -> Shards:
    """Deal one batch to each rank, and again."""
    return tuple(tuple(batches[rank::world_size]) for rank in range(world_size))


def in_runs(batches: Sequence[Batch], world_size: int) -> Shards:
    """Deal runs of neighbouring batches, of about the same length."""
    n = len(batches)
    return deal(batches, [index * world_size // n for index in range(n)], world_size)


def shapes(batches: Sequence[Batch], world_sizes: Sequence[int]) -> dict[str, Shards]:
    """Return the partitions that are always tried, as Apache Beam's tests of combiners have them.

    In turn and in runs over every world size; 1, 2, n/2 and √n ranks; shares that double from rank
    to rank; all on the first rank, all on the last one.
    """
    n, everything = len(batches), tuple(batches)
    layouts: dict[str, Shards] = {}
    for world in world_sizes:
        nothing: Shards = ((),) * (world - 1)
        layouts[f"in turn, {world} ranks"] = in_turn(batches, world)
        layouts[f"in runs, {world} ranks"] = in_runs(batches, world)
        layouts[f"all on the last of {world}"] = (*nothing, everything)
        layouts[f"all on the first of {world}"] = (everything, *nothing)
    fewer = {
        "one": 1,
        "two": 2,
        "n/2": n // 2,
        "√n": math.isqrt(n),
    }
    for label, world in fewer.items():
        layouts[f"{label} ranks"] = in_runs(batches, min(max(world, 1), _MOST))
    doubling = [min(number.bit_length(), _MOST) - 1 for number in range(1, n + 1)]
    layouts["doubling"] = deal(batches, doubling, max(doubling, default=0) + 1)
    distinct: dict[Any, tuple[str, Shards]] = {}
    for label, shards in layouts.items():
        distinct.setdefault(identities(shards), (label, shards))
    return dict(distinct.values())


def partitions(batches: Sequence[Any], worlds: Sequence[int] = (1, 2, 3)) -> SearchStrategy[Shards]:
    """Draw how ``batches`` are dealt: uneven, ranks left empty, batches cut, also to nothing.

    Shrinks to few ranks, with all on the first.
    """
    with optional("hypothesis", "drawing shards"):
        from hypothesis import strategies as st

    whole = [as_batch(batch) for batch in batches]

    @st.composite
    def draw_shards(draw: Any) -> Shards:
        world = draw(st.sampled_from(sorted(worlds)))
        shards: list[list[Batch]] = [[] for _ in range(world)]
        for batch in whole:
            rank = draw(st.integers(0, world - 1))
            cut = draw(st.sampled_from((None, 0, 1)))
            rows = count(batch) or 0
            if cut is None or cut >= rows:
                shards[rank].append(batch)
            else:
                shards[rank].append(take(batch, range(cut)))
                shards[(rank + 1) % world].append(take(batch, range(cut, rows)))
        return tuple(map(tuple, shards))

    return draw_shards()


def padded(batches: Sequence[Any], world_size: int) -> Shards:
    """Deal samples in turn, and the first ones again until all ranks have equally many.

    So does ``torch.utils.data.DistributedSampler``. The argument ``indices`` of ``update`` holds
    the samples' places in the data set.
    """
    whole = join([as_batch(batch) for batch in batches])
    rows = count(whole)
    if not rows or "indices" not in whole.kwargs:
        raise InputError("the batches need an argument indices= with a place for each sample")
    each = -(-rows // world_size)
    order = [index % rows for index in range(each * world_size)]
    parts = [take(whole, order[rank::world_size]) for rank in range(world_size)]
    return in_turn(parts, world_size)


def low_precision(batches: Sequence[Any], dtype: torch.dtype | None = None) -> list[Batch]:
    """Return the batches with their floating tensors in ``dtype``, bfloat16 by default."""
    low = dtype or torch.bfloat16
    return [changed_floats(as_batch(batch), lambda x: x.to(low)) for batch in batches]


def hash_seeds(world_size: int) -> SearchStrategy[list[int]]:
    """Draw a ``PYTHONHASHSEED`` for each rank: sets of texts differ in order between processes.

    For ``run(…, backend="gloo", hash_seeds=…)``; shrinks to ranks that have one order.
    """
    with optional("hypothesis", "drawing shards"):
        from hypothesis import strategies as st

    seed = st.integers(0, 2**32 - 1)
    return st.lists(seed, min_size=world_size, max_size=world_size)
