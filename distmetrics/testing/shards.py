"""How batches are dealt to ranks: the shapes that are always tried, and hypothesis strategies for
the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distmetrics.testing.rows import Batch, count, take
from distmetrics.testing.trial import Shards

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = [
    "deal",
    "hash_seeds",
    "low_precision",
    "padded",
    "partitions",
    "permutations",
    "shapes",
    "world_sizes",
]


def deal(batches: Sequence[Batch], ranks: Sequence[int], world_size: int) -> Shards:
    """Deal batch i to rank ``ranks[i]``.

    >>> [len(shard) for shard in deal([Batch(), Batch(), Batch()], [0, 2, 0], 3)]
    [2, 0, 1]
    """
    return tuple(
        tuple(batch for batch, rank in zip(batches, ranks, strict=True) if rank == r)
        for r in range(world_size)
    )


def shapes(batches: Sequence[Batch], world_sizes: Sequence[int]) -> dict[str, Shards]:
    """Return the partitions that are always tried, as Apache Beam's tests of combiners have them.

    In turn and in runs over every world size; 1, 2, n/2 and √n ranks; shares that double from rank
    to rank; all on the first rank, all on the last one.
    """
    n = len(batches)
    found: dict[str, Shards] = {}
    for world in world_sizes:
        found[f"in turn, {world} ranks"] = deal(batches, [i % world for i in range(n)], world)
        found[f"in runs, {world} ranks"] = deal(
            batches, [i * world // n for i in range(n)] if n else [], world
        )
        found[f"all on the last of {world}"] = deal(batches, [world - 1] * n, world)
        found[f"all on the first of {world}"] = deal(batches, [0] * n, world)
    for label, world in (
        ("one rank", 1),
        ("two ranks", 2),
        ("n/2 ranks", n // 2),
        ("√n ranks", math.isqrt(n)),
    ):
        world = min(max(world, 1), _MOST)
        found[label] = deal(batches, [i * world // n for i in range(n)] if n else [], world)
    found["doubling"] = _doubling(batches)
    kept: dict[Any, str] = {}
    for label, shards in found.items():
        kept.setdefault(tuple(tuple(map(id, shard)) for shard in shards), label)
    return {label: found[label] for label in kept.values()}


_MOST = 8  # ranks of a world that a shape may ask for


def _doubling(batches: Sequence[Batch]) -> Shards:
    """Give rank r 2ʳ batches."""
    ranks = [min((i + 1).bit_length() - 1, _MOST - 1) for i in range(len(batches))]
    return deal(batches, ranks, max(ranks, default=0) + 1)


def world_sizes(largest: int = 4) -> SearchStrategy[int]:
    """Draw a number of ranks, from 1 to ``largest``; shrinks to 1."""
    from hypothesis import strategies as st

    return st.integers(1, largest)


def partitions(batches: Sequence[Any], worlds: Sequence[int] = (1, 2, 3)) -> SearchStrategy[Shards]:
    """Draw how ``batches`` are dealt: uneven, in any order, ranks left empty, batches cut into
    parts or to nothing.

    Shrinks to few ranks, with all on the first.
    """
    from hypothesis import strategies as st

    from distmetrics.testing.rows import as_batch

    whole = [as_batch(batch) for batch in batches]

    @st.composite
    def draw_shards(draw: Any) -> Shards:
        world = draw(st.sampled_from(sorted(worlds)))
        ranks = draw(st.lists(st.integers(0, world - 1), min_size=len(whole), max_size=len(whole)))
        cuts = draw(
            st.lists(st.sampled_from((None, 0, 1)), min_size=len(whole), max_size=len(whole))
        )
        pieces: list[tuple[Batch, int]] = []
        for batch, rank, cut in zip(whole, ranks, cuts, strict=True):
            rows = count(batch)
            if cut is None or not rows:
                pieces.append((batch, rank))
            else:
                pieces += [
                    (take(batch, range(cut)), rank),
                    (take(batch, range(cut, rows)), (rank + 1) % world),
                ]
        if not any(cut == 0 for cut in cuts):
            pieces = [(batch, rank) for batch, rank in pieces if count(batch) != 0]
        return deal([batch for batch, _ in pieces], [rank for _, rank in pieces], world)

    return draw_shards()


def permutations(n: int) -> SearchStrategy[list[int]]:
    """Draw an order of n things; shrinks to the one they have."""
    from hypothesis import strategies as st

    return st.permutations(range(n))


def padded(batches: Sequence[Any], world_size: int, argument: str = "indices") -> Shards:
    """Deal samples in turn as ``torch.utils.data.DistributedSampler`` does: the first ones again,
    until all are even.

    ``argument`` names the argument of ``update`` that holds the samples' places in the data set.
    """
    from distmetrics.testing.rows import as_batch, join

    whole = join([as_batch(batch) for batch in batches])
    rows = count(whole)
    if not rows or argument not in whole.kwargs:
        raise ValueError(f"the batches need an argument {argument}= with a place for each sample")
    each = -(-rows // world_size)
    order = [i % rows for i in range(each * world_size)]
    return tuple((take(whole, order[rank::world_size]),) for rank in range(world_size))


def low_precision(batches: Sequence[Any], dtype: Any = None) -> list[Batch]:
    """Return the batches with their floating tensors in ``dtype``, bfloat16 by default."""
    import torch

    from distmetrics.testing.rows import as_batch

    return [_in_dtype(as_batch(batch), dtype or torch.bfloat16) for batch in batches]


def _in_dtype(batch: Batch, dtype: Any) -> Batch:
    from distmetrics.testing.rows import changed

    return changed(
        batch, lambda x: x.to(dtype) if getattr(x, "is_floating_point", lambda: False)() else x
    )


def hash_seeds(world_size: int) -> SearchStrategy[list[int]]:
    """Draw a ``PYTHONHASHSEED`` for each rank: the order of sets of texts differs between
    processes.

    For ``run(…, backend="gloo", hash_seeds=…)``; shrinks to ranks that have one order.
    """
    from hypothesis import strategies as st

    return st.lists(st.integers(0, 2**32 - 1), min_size=world_size, max_size=world_size)
