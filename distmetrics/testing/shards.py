"""How batches are dealt to ranks: hypothesis strategies, and shapes that are always tried.

A batch is what one ``update`` is called with: a tuple of positional arguments, or a mapping of
named ones. An argument has one row per sample if it is a tensor (along its first axis), an array, a
list, or a mapping of such. Numbers, texts and the rest belong to the batch as a whole, such as
``real=True``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from distmetrics.errors import InputError, InputTypeError, optional
from distmetrics.testing.equality import EXACT

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
Batch = tuple[Any, ...] | Mapping[str, Any]
Shards = tuple[tuple[Batch, ...], ...]  # for each rank its batches

_MOST = 8  # ranks of a world that a shape may ask for
_PARTS = 32  # of a batch that may be left out by themselves
_PLAIN = (torch.float32, torch.int64, torch.bool)  # what torch.tensor makes of Python's numbers

# Batches as rows of samples.


def as_batch(value: Any) -> Batch:
    """Return a tuple or a mapping as it is, and anything else as the only argument."""
    return value if isinstance(value, tuple | Mapping) else (value,)


def listed(batches: Any) -> list[Batch]:
    """Return a user's batches as a list.

    Raises:
        InputTypeError: they are not a list.
        InputError: the list is empty.
    """
    if isinstance(batches, str | bytes | Mapping) or not isinstance(batches, Iterable):
        raise InputTypeError(
            "batches must be a list of update arguments, or a hypothesis strategy of such lists, "
            f"got {type(batches).__name__}",
            do="pass [(preds, target), (preds, target)]",
        )
    made = [as_batch(batch) for batch in batches]
    if not made:
        raise InputError("batches is empty: there is nothing to judge a metric on")
    return made


def arguments_of(batch: Any) -> Iterator[Any]:
    """Yield all arguments, also those within mappings."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    for value in values:
        if isinstance(value, Mapping):
            yield from arguments_of(value)
        else:
            yield value


def count(batch: Batch) -> int | None:
    """Return the number of samples, or None if the arguments have none or do not agree.

    >>> count((torch.zeros(3, 5), torch.zeros(3)))
    3
    """
    lengths = {len(value) for value in arguments_of(batch) if _has_rows(value)}
    return lengths.pop() if len(lengths) == 1 else None


def changed(change: Callable[..., Any], *batches: Any) -> Batch:
    """Return a batch of what ``change`` returns for each argument of some batches alike."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {name: _changed(change, *(each[name] for each in batches)) for name in first}
    return tuple(_changed(change, *values) for values in zip(*batches, strict=True))


def _changed(change: Callable[..., Any], *values: Any) -> Any:
    return changed(change, *values) if isinstance(values[0], Mapping) else change(*values)


def take(batch: Batch, indices: Sequence[int]) -> Batch:
    """Return the samples at ``indices``, in that order.

    >>> take((torch.tensor([5, 6, 7]), ["a", "b", "c"]), [2, 0])
    (tensor([7, 5]), ['c', 'a'])
    """

    def taken(value: Any) -> Any:
        if isinstance(value, list):
            return [value[index] for index in indices]
        return value[list(indices)] if _has_rows(value) else value

    return changed(taken, batch)


def cut(batch: Batch, number: int) -> list[Batch]:
    """Return at most ``number`` parts of a batch, none of them empty.

    >>> cut((["a", "b", "c"],), 2)
    [(['a'],), (['b', 'c'],)]
    """
    rows = count(batch) or 1
    if rows < 2:
        return [batch]
    number = min(number, rows)
    edges = [index * rows // number for index in range(number + 1)]
    return [take(batch, range(*ends)) for ends in pairwise(edges)]


def join(batches: Sequence[Batch]) -> Batch:
    """Return one batch with the samples of all.

    Raises:
        InputError: shapes differ, or arguments that belong to a batch as a whole.

    >>> join([([1],), ([2, 3],)])
    ([1, 2, 3],)
    """
    kinds = {frozenset(each) if isinstance(each, Mapping) else len(each) for each in batches}
    if len(kinds) > 1:
        raise InputError("batches with different arguments cannot be joined")
    return changed(_joined, *batches)


def _has_rows(value: Any) -> bool:
    return isinstance(value, list) or getattr(value, "ndim", 0) > 0


def _joined(*values: Any) -> Any:
    first = values[0]
    if isinstance(first, list):
        return [item for value in values for item in value]
    if isinstance(first, Tensor) and first.ndim:
        if len({(value.shape[1:], value.dtype) for value in values}) > 1:
            raise InputError("batches of different shapes cannot be joined")
        return torch.cat(values)
    if _has_rows(first):
        import numpy as np

        return np.concatenate(values)
    if any(EXACT.difference(first, value) for value in values):
        raise InputError("batches that differ in an argument of the whole batch cannot be joined")
    return first


def is_floating(value: Any) -> bool:
    """Return True for a tensor of floating numbers."""
    return isinstance(value, Tensor) and value.is_floating_point()


def changed_floats(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Return the batch with ``change`` applied to every tensor of floating numbers."""
    return changed(lambda value: change(value) if is_floating(value) else value, batch)


def low_precision(batches: Sequence[Any], dtype: torch.dtype | None = None) -> list[Batch]:
    """Return the batches with their floating tensors in ``dtype``, bfloat16 by default.

    >>> low_precision([(torch.tensor([0.5]), torch.tensor([1]))])
    [(tensor([0.5000], dtype=torch.bfloat16), tensor([1]))]
    """
    low = dtype or torch.bfloat16
    return [changed_floats(as_batch(batch), lambda x: x.to(low)) for batch in batches]


# Cases, and their code.


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


def code(value: Any) -> str:
    """Return a value as code that makes it again; names used are ``torch`` and ``np``.

    >>> code((torch.tensor([0.1, float("nan")]), {"real": True}))
    "(torch.tensor([0.1, float('nan')]), {'real': True})"
    """
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {code(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(code, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(code, value))}{',' if len(value) == 1 else ''})"
    if type(value).__module__ == "numpy":
        return f"np.array({_numbers(value.tolist())}, dtype={value.dtype.name!r})"
    return _numbers(value) if isinstance(value, float) else repr(value)


def _tensor(x: Tensor) -> str:
    if x.numel() == 0:
        return f"torch.zeros({tuple(x.shape)}, dtype={x.dtype})"
    plain = x.detach().cpu()
    numbers = plain.tolist()
    if x.is_floating_point() and x.dtype != torch.float64:
        # NumPy writes a float32 with no more digits than it takes to get it back.
        numbers = plain.float().numpy().astype(str).astype(float).tolist()
    dtype = "" if x.dtype in _PLAIN else f", dtype={x.dtype}"
    return f"torch.tensor({_numbers(numbers)}{dtype})"


def _numbers(value: Any) -> str:
    """Return numbers as code: Python has no literal for NaN and infinity."""
    return re.sub(r"\b(nan|inf)\b", r"float('\1')", repr(value))


# Batches that are dealt to ranks.


def deal(batches: Sequence[Batch], ranks: Sequence[int], world_size: int) -> Shards:
    """Deal batch i to rank ``ranks[i]`` of ``world_size``; return the batches of each rank.

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


def identities(shards: Shards) -> tuple[tuple[int, ...], ...]:
    """Return what tells shards apart that are dealt from the same batches."""
    return tuple(tuple(map(id, shard)) for shard in shards)


def shapes(batches: Sequence[Batch], world_sizes: Sequence[int]) -> dict[str, Shards]:
    """Return the partitions of batches that are always tried, as in Apache Beam's combiner tests.

    They are, by name: in turn and in runs over each of ``world_sizes``; 1, 2, n/2 and √n ranks;
    shares that double from rank to rank; all on the first rank; all on the last one; a batch
    without samples on the first rank, and runs over the others.

    >>> found = shapes("abc", [2])
    >>> found["in turn, 2 ranks"], found["all on the last of 2"]
    ((('a', 'c'), ('b',)), ((), ('a', 'b', 'c')))
    """
    n = len(batches)
    made: dict[str, Shards] = {}
    for world in world_sizes:
        made[f"in turn, {world} ranks"] = in_turn(batches, world)
        made[f"in runs, {world} ranks"] = in_runs(batches, world)
        made[f"all on the last of {world}"] = deal(batches, [world - 1] * n, world)
        made[f"all on the first of {world}"] = deal(batches, [0] * n, world)
    fewer = {"one": 1, "two": 2, "n/2": n // 2, "√n": math.isqrt(n)}
    for label, world in fewer.items():
        made[f"{label} ranks"] = in_runs(batches, min(max(world, 1), _MOST))
    world = max(world_sizes)
    if world > 1 and (empty := _empty(batches)):
        made[f"no samples on the first of {world}"] = (empty, *in_runs(batches, world - 1))
    doubling = [min(number.bit_length(), _MOST) - 1 for number in range(1, n + 1)]
    made["doubling"] = deal(batches, doubling, max(doubling, default=0) + 1)
    labels: dict[Any, str] = {}
    for label, shards in made.items():
        labels.setdefault(identities(shards), label)
    return {label: made[label] for label in labels.values()}


def _empty(batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """Return a batch without samples, if there is an axis of samples."""
    return tuple(take(batch, []) for batch in batches[:1] if count(batch))


def padded(batches: Sequence[Any], world_size: int) -> Shards:
    """Deal samples in turn, and the first ones again until all ranks have equally many.

    ``torch.utils.data.DistributedSampler`` does so.

    Args:
        batches: mappings with the argument ``indices``, the samples' places in the data set.
        world_size: number of ranks.

    Raises:
        InputError: the batches have no ``indices``, or cannot be joined.

    >>> padded([{"x": ["a", "b", "c"], "indices": [0, 1, 2]}], 2)
    (({'x': ['a', 'c'], 'indices': [0, 2]},), ({'x': ['b', 'a'], 'indices': [1, 0]},))
    """
    whole = join([as_batch(batch) for batch in batches])
    rows = count(whole)
    if not rows or not isinstance(whole, Mapping) or "indices" not in whole:
        raise InputError("the batches need an argument indices= with a place for each sample")
    each = -(-rows // world_size)
    order = [index % rows for index in range(each * world_size)]
    return tuple((take(whole, order[rank::world_size]),) for rank in range(world_size))


def fewer(case: Case) -> Iterator[Case]:
    """Yield the case without one rank, without one batch, and without a part of one batch.

    Large parts come first; of large batches the smallest parts are runs of samples.
    """
    for rank in range(len(case)):
        yield Case([*case[:rank], *case[rank + 1 :]])
    for rank, shard in enumerate(case):
        for place, batch in enumerate(shard):
            for left in ([], *([each] for each in _without_a_part(batch))):
                kept = [*shard[:place], *left, *shard[place + 1 :]]
                yield Case([*case[:rank], kept, *case[rank + 1 :]])


def _without_a_part(batch: Batch) -> Iterator[Batch]:
    rows = count(batch) or 1
    size, smallest = rows // 2, max(1, rows // _PARTS)
    while size >= smallest:
        for start in range(0, rows, size):
            yield take(batch, [*range(start), *range(start + size, rows)])
        size //= 2


# Strategies of hypothesis.


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

    Raises:
        InputError: ``world_sizes`` is empty, or has a number below 1.
        MissingDependencyError: hypothesis is not installed.

    >>> from hypothesis import find
    >>> find(sharded([(torch.tensor([5, 6]),)] * 2), lambda case: len(case) == 2 and any(case[0]))
    (((torch.tensor([6]),),), ())
    """
    with optional("hypothesis", "drawing shards"):
        from hypothesis import strategies as st

    sizes = checked_sizes(world_sizes)
    source: Any = batches
    lists = source.map(listed) if is_strategy(batches) else _left_of(listed(batches))

    @st.composite
    def cases(draw: Any) -> Case:
        dealt, world = draw(lists), draw(st.sampled_from(sizes))
        # Of ranks without data: no update, or one with no samples.
        idle = draw(st.sampled_from([(), _empty(dealt)]))
        tried = [each for each in shapes(dealt, [world]).values() if len(each) == world]
        # Shapes come first, since hypothesis shrinks to them; every other case is dealt freely.
        shards = draw(st.sampled_from(tried) | partitions(dealt, [world]))
        return Case(shard or idle for shard in shards)

    return cases()


def _left_of(batches: list[Batch]) -> SearchStrategy[list[Batch]]:
    """Draw the batches with some samples left out, mostly few; of large ones runs of samples."""
    with optional("hypothesis", "drawing shards"):
        from hypothesis import strategies as st

    parts = [cut(batch, _PARTS) for batch in batches]
    flags = st.tuples(*(st.binary(min_size=len(each), max_size=len(each)) for each in parts))

    def left(drawn: tuple[bytes, ...]) -> list[Batch]:
        kept = [[*compress(*each)] for each in zip(parts, drawn, strict=True)]
        return [join(each) for each in kept if each]

    return flags.map(left)


def partitions(batches: Sequence[Any], worlds: Sequence[int] = (1, 2, 3)) -> SearchStrategy[Shards]:
    """Draw how ``batches`` are dealt: uneven, ranks left empty, batches cut, also to nothing.

    Every sample is on one rank. Shrinks to few ranks, with all batches on the first.

    Args:
        batches: a list of what ``update`` is called with.
        worlds: numbers of ranks.

    >>> from hypothesis import find
    >>> find(partitions([(["a", "b"],)], [2]), all)
    ((([],),), ((['a', 'b'],),))
    """
    with optional("hypothesis", "drawing shards"):
        from hypothesis import strategies as st

    whole = [as_batch(batch) for batch in batches]

    def cuts(batch: Batch) -> list[list[Batch]]:
        """Return the batch in one part, and in two, of which the first has no sample or one."""
        rows = count(batch) or 0
        edges = range(min(2, rows))
        in_two = [[take(batch, range(e)), take(batch, range(e, rows))] for e in edges]
        return [[batch], *in_two]

    @st.composite
    def dealt(draw: Any) -> Shards:
        world = draw(st.sampled_from(sorted(worlds)))
        parts = [part for batch in whole for part in draw(st.sampled_from(cuts(batch)))]
        return deal(parts, [draw(st.integers(0, world - 1)) for _ in parts], world)

    return dealt()


def hash_seeds(world_size: int) -> SearchStrategy[list[int]]:
    """Draw a ``PYTHONHASHSEED`` for each rank: sets of texts differ in order between processes.

    For ``run(…, backend="gloo", hash_seeds=…)``; shrinks to ranks that have one order.

    >>> from hypothesis import find
    >>> find(hash_seeds(2), lambda seeds: seeds[0] < seeds[1])
    [0, 1]
    """
    with optional("hypothesis", "drawing shards"):
        from hypothesis import strategies as st

    return st.lists(st.integers(0, 2**32 - 1), min_size=world_size, max_size=world_size)
