"""How batches are dealt to ranks: hypothesis strategies, and shapes that are always tried."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import torch

from distmetrics.errors import InputError, optional
from distmetrics.testing.batches import (
    Batch,
    Shards,
    as_batch,
    changed_floats,
    code,
    count,
    identities,
    join,
    listed,
    take,
)

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = [
    "Case",
    "deal",
    "hash_seeds",
    "low_precision",
    "padded",
    "partitions",
    "shapes",
    "sharded",
]
_MOST = 8  # ranks of a world that a shape may ask for
_PARTS = 32  # of a batch that may be left out by themselves


class Case(tuple[tuple[Batch, ...], ...]):
    """What every rank of a world is updated with: for each rank a tuple of batches.

    Its ``repr`` is code that makes it again.

    >>> Case([[(torch.tensor([0.5]),)], []])
    (((torch.tensor([0.5]),),), ())
    """

    __slots__ = ()

    def __new__(cls, shards: Iterable[Iterable[Any]] = ()) -> Case:
        """Deal what a user writes as batches."""
        return super().__new__(cls, (tuple(map(as_batch, shard)) for shard in shards))

    def __repr__(self) -> str:
        return code(tuple(self))


def sharded(
    batches: SearchStrategy[list[Any]] | Sequence[Any], *, world_sizes: Sequence[int] = (1, 2, 3)
) -> SearchStrategy[Case]:
    """Draw cases: for each rank of a world a tuple of batches.

    Ranks may be empty and have unequally many batches; a batch may be cut in two, also so that one
    part has no samples. What fails shrinks to few ranks, few batches and few samples.

    Args:
        batches: what ``update`` is called with, one item per call: a strategy of such lists, as in
            :mod:`distmetrics.testing.inputs`, or a list, of which some samples may be left out.
        world_sizes: numbers of ranks.

    >>> from hypothesis import find
    >>> find(sharded([(torch.tensor([5, 6]),)] * 2), lambda case: len(case) == 2 and any(case[0]))
    (((torch.tensor([6]),),), ())
    """
    with optional("hypothesis", "drawing shards"):
        from hypothesis import strategies as st

    sizes = checked_sizes(world_sizes)
    fixed = None if is_strategy(batches) else listed(batches)

    @st.composite
    def cases(draw: Any) -> Case:
        drawn = listed(draw(batches)) if fixed is None else [*chain(*draw(smaller([fixed])))]
        world = draw(st.sampled_from(sizes))
        tried = [each for each in shapes(drawn, [world]).values() if len(each) == world]
        # Shapes come first, since hypothesis shrinks to them; every other case is dealt freely.
        place = draw(st.integers(0, 2 * len(tried) - 1))
        return Case(tried[place] if place < len(tried) else draw(partitions(drawn, [world])))

    return cases()


def smaller(case: Sequence[Sequence[Batch]]) -> SearchStrategy[Case]:
    """Draw cases in which ranks, batches and samples of a case are left out; mostly few of them.

    Of large batches runs of samples are left out.
    """
    with optional("hypothesis", "making a case smaller"):
        from hypothesis import strategies as st

    parts = [[min(count(batch) or 1, _PARTS) for batch in shard] for shard in case]

    def left(flags: bytes) -> Case:
        """Leave out what has a zero, to which hypothesis shrinks: the largest parts come first."""
        flag = iter(flags)
        has_rank = [next(flag) for _ in case]
        has_batch = [[next(flag) for _ in shard] for shard in case]
        ranks: list[list[Batch]] = []
        for shard, are_kept, numbers in zip(case, has_batch, parts, strict=True):
            kept: list[Batch] = []
            ranks.append(kept)
            for batch, is_kept, number in zip(shard, are_kept, numbers, strict=True):
                wanted = [next(flag) for _ in range(number)]
                kept += _left_of(batch, wanted) if is_kept else []
        return Case(kept for kept, is_kept in zip(ranks, has_rank, strict=True) if is_kept)

    size = sum(1 + len(numbers) + sum(numbers) for numbers in parts)
    return st.binary(min_size=size, max_size=size).map(left)


def _left_of(batch: Batch, wanted: Sequence[int]) -> list[Batch]:
    """Return the batch with the parts that are wanted, or nothing if that is none."""
    if all(wanted):
        return [batch]
    rows, number = count(batch) or 1, len(wanted)
    edges = [index * rows // number for index in range(number + 1)]
    spans = zip(wanted, pairwise(edges), strict=True)
    kept = [row for is_kept, ends in spans if is_kept for row in range(*ends)]
    return [take(batch, kept)] if kept else []


def is_strategy(batches: Any) -> bool:
    """Return True for a hypothesis strategy, which may not be installed."""
    return hasattr(batches, "example") and hasattr(batches, "map")


def checked_sizes(world_sizes: Sequence[int]) -> list[int]:
    """Return numbers of ranks, the fewest first.

    Raises:
        InputError: there are none, or one is below 1.
    """
    sizes = sorted(set(world_sizes))
    if not sizes or sizes[0] < 1:
        raise InputError(f"world_sizes must be numbers of ranks from 1 on, got {world_sizes!r}")
    return sizes


def deal(batches: Sequence[Batch], ranks: Sequence[int], world_size: int) -> Shards:
    """Deal batch i to rank ``ranks[i]``.

    >>> deal("abc", [0, 2, 0], 3)
    (('a', 'c'), (), ('b',))
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

    They are: in turn and in runs over every world size; 1, 2, n/2 and √n ranks; shares that double
    from rank to rank; all on the first rank; all on the last one.
    """
    n, everything = len(batches), tuple(batches)
    made: dict[str, Shards] = {}
    for world in world_sizes:
        nothing: Shards = ((),) * (world - 1)
        made[f"in turn, {world} ranks"] = in_turn(batches, world)
        made[f"in runs, {world} ranks"] = in_runs(batches, world)
        made[f"all on the last of {world}"] = (*nothing, everything)
        made[f"all on the first of {world}"] = (everything, *nothing)
    fewer = {"one": 1, "two": 2, "n/2": n // 2, "√n": math.isqrt(n)}
    for label, world in fewer.items():
        made[f"{label} ranks"] = in_runs(batches, min(max(world, 1), _MOST))
    doubling = [min(number.bit_length(), _MOST) - 1 for number in range(1, n + 1)]
    made["doubling"] = deal(batches, doubling, max(doubling, default=0) + 1)
    distinct: dict[Any, tuple[str, Shards]] = {}
    for label, shards in made.items():
        distinct.setdefault(identities(shards), (label, shards))
    return dict(distinct.values())


def partitions(batches: Sequence[Any], worlds: Sequence[int] = (1, 2, 3)) -> SearchStrategy[Shards]:
    """Draw how ``batches`` are dealt: uneven, ranks left empty, batches cut, also to nothing.

    Every sample is on one rank. Shrinks to few ranks, with all batches on the first.
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

    ``torch.utils.data.DistributedSampler`` does so. The argument ``indices`` of ``update`` holds
    the samples' places in the data set.
    """
    whole = join([as_batch(batch) for batch in batches])
    rows = count(whole)
    if not rows or not isinstance(whole, Mapping) or "indices" not in whole:
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
