"""The laws that a metric keeps if its number is the single process's, under any sharding.

Each law is a constant of this module, such as ``RANKS_AGREE``; ``docs/kit/laws.md`` explains all of
them. ``law(make, case)`` raises ``LawViolation`` if the metric that ``make()`` makes breaks the law
on the case, the batches of each rank. Laws combine with ``|`` and ``-``. One that a metric cannot
keep is declared off, with a reason that reports repeat.

Laws compare runs with runs, so that a fault breaks only the law that it is about: the law of the
empty rank compares a world with an empty rank to the same world without it, not to the single
process.

>>> import torch
>>> from torchmetrics import SumMetric
>>> RANKS_AGREE(SumMetric, [[(torch.tensor([1.0]),)], []])
>>> chosen = DEFAULT.off(RANK_ORDER, because="the value is a list in rank order") | WORLD_SIZE
>>> RANK_ORDER in chosen, WORLD_SIZE in chosen, len(ALL)
(False, True, 27)
"""

# ruff: noqa: D205, N802  (a law is a constant for its users, and its docstring is its page)

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from distmetrics.comm.verdict import Outcome
from distmetrics.errors import InputError, in_short
from distmetrics.layouts.mesh import SAME, SHARD, Mesh
from distmetrics.testing import subject
from distmetrics.testing.equality import BITWISE, Equality
from distmetrics.testing.law import Law, LawBroken, Laws, NotJudged, Runs, law
from distmetrics.testing.shards import (
    Batch,
    Shards,
    arguments_of,
    changed_floats,
    count,
    cut,
    in_runs,
    in_turn,
    is_floating,
    join,
    padded,
    take,
)
from distmetrics.tree import map_leaves

__all__ = ["ALL", "DEFAULT", "EXACT", "LAYOUTS", "NUMERICS", "Law", "Laws", "find"]


@law(1, "the value is the one that a single process gets from all the data", on_all_shards=True)
def SINGLE_IS_SHARDED(runs: Runs) -> None:
    """However the batches are dealt to ranks that all have some, each rank's value after the sync
    is that of one process which was updated with all of them, in rank order.

    It breaks where ``update`` keeps data in a plain attribute, which no sync sends; where values
    are averaged instead of states; where means of shards of different size are not weighted; and
    where a state that is not a sum is declared ``dist_reduce_fx="sum"``.
    Declare sums and counts as states by ``add_state``, and divide in ``compute``.
    """
    dense, shards = runs.dense, tuple(filter(None, runs.shards))
    single = runs.single([*chain.from_iterable(shards)])
    if single.error:  # mostly of an update that refuses a batch without samples
        shards, single = dense, runs.single()
    ranks = runs.settled(shards)
    if single.error is None:
        got = runs.values(shards, instead=single.value)
        runs.compare(single.value, got[:1], shards)
    elif all(rank.error for rank in ranks):
        raise NotJudged(f"a single process raises {in_short(single.error)}")
    else:
        raise LawBroken(single, ranks, "a value where a single process raises", shards)


@law(2, "all ranks get the same value, bit by bit", on_all_shards=True)
def RANKS_AGREE(runs: Runs) -> None:
    """A checkpoint callback decides on every rank by itself. Ranks that see different numbers take
    different branches, and the job hangs in the next collective.

    It breaks where ``compute`` reads the rank, local data, or random numbers.
    Compute from the synced states alone.
    """
    got = runs.values(runs.shards)
    runs.compare(got[0], got, runs.shards, " of rank 0", BITWISE)


@law(3, "a rank that was never updated changes nothing", on_all_shards=True)
def EMPTY_RANK_IS_NEUTRAL(runs: Runs) -> None:
    """The last shard of a small validation set is often empty.

    It breaks where the default of a state changes the merged value (a sum that starts at 1, a mean
    over ranks), and where ``compute`` reads an attribute that only ``update`` sets.
    Choose defaults that add nothing, and set all attributes in ``__init__``.
    """
    shards = runs.dense
    expected = runs.values(shards)[0]
    first: Shards = ((), *shards)
    for more in (first, (*shards, ()), (*first, (), ())):
        got = runs.values(more, instead=expected)
        runs.compare(expected, got[:1], more, " without the empty rank")


@law(4, "an update with no samples changes nothing", needs_state=True)
def EMPTY_BATCH_IS_NEUTRAL(runs: Runs) -> None:
    """Filtering may leave a batch without samples. An ``update`` that refuses empty input with an
    error keeps the law.

    It breaks where ``update`` divides by the batch's size (NaN), where batches are counted instead
    of samples, and where the default of a state is taken for data of a rank whose only batch is
    empty. Count samples, divide in ``compute``, and choose defaults that add nothing.
    """
    shards = runs.dense
    if not count(shards[0][0]):
        raise NotJudged("the batches' arguments have no axis of samples in common")
    nothing = take(shards[0][0], [])
    _accepted(runs.single([nothing, *runs.pooled]), "an update with no samples")
    more = ((nothing, *shards[0]), *shards[1:])
    if shards[1:]:
        more = (*more[:-1], (*more[-1], nothing))
    runs.same_value(shards, [more, ((nothing,), *shards)], " without the empty batches")


@law(
    5,
    "merging (a, b) and then c is merging a and then (b, c)",
    needs_state=True,
    not_own="a metric's own sync merges all ranks at once",
)
def ASSOCIATIVE(runs: Runs) -> None:
    """Trees of ranks, and checkpoints of partial results, merge in another order than a flat sync.

    It breaks where means are averaged, and where states are overwritten instead of merged.
    Keep sums and counts as states.
    """
    first, second, third = shards = runs.parts(3)
    merged_left = runs.values((first, second), subject.merged)[0]
    merged_right = runs.values((second, third), subject.merged)[0]
    last_alone, first_alone = runs.subject.filled(third), runs.subject.filled(first)
    left = runs.values(((merged_left,), (last_alone,)), subject.prefilled)
    right = runs.values(((first_alone,), (merged_right,)), subject.prefilled)
    note = " when the first two are merged first"
    runs.compare(left[0], right[:1], shards, note)


@law(6, "the order of the ranks is irrelevant")
def RANK_ORDER(runs: Runs) -> None:
    """Whether a shard is rank 0's or rank 3's says nothing about the data.

    It breaks where states are gathered and only the first is used, and where the value lists the
    samples in their order. In the second case declare the law off
    (``laws.DEFAULT.off(laws.RANK_ORDER, because="ordered")``).
    """
    shards = runs.dense
    if len(shards) < 2:
        raise NotJudged("only one rank has samples")
    one_on = (*shards[1:], shards[0])
    runs.same_value(shards, (shards[::-1], one_on), " in the other order of ranks")


@law(7, "the order of the samples is irrelevant, within batches and across them")
def SAMPLE_ORDER(runs: Runs) -> None:
    """A sampler shuffles.

    It breaks where the value depends on the batches (a mean of batch values), and where it lists
    the samples in their order. In the second case declare the law off.
    """
    shards = runs.dense
    try:
        whole = join(runs.pooled)
    except InputError as error:
        raise NotJudged(str(error)) from error
    rows = count(whole)
    if not rows:
        raise NotJudged("the batches' arguments have no axis of samples in common")
    generator = torch.Generator().manual_seed(rows)
    order = iter(torch.randperm(rows, generator=generator).tolist())
    shuffled = _changed(shards, lambda batch: take(whole, list(islice(order, count(batch)))))
    runs.same_value(shards, [shuffled], " in the other order of samples")


@law(8, "two updates with parts of a batch are one update with all of it")
def BATCH_SPLIT(runs: Runs) -> None:
    """The batch size is no property of the data.

    It breaks where batches' values are averaged, and where the first batch decides something, such
    as a scale. Keep sums and counts of samples as states.
    """
    shards = runs.dense
    halves = tuple(tuple(half for batch in shard for half in cut(batch, 2)) for shard in shards)
    if list(map(len, halves)) == list(map(len, shards)):
        raise NotJudged("no batch has two samples")
    runs.same_value(shards, [halves], " with the batches in one piece")


@law(9, "the value has the same bits for 1, 2, 3, 5 and 8 ranks")
def WORLD_SIZE(runs: Runs) -> None:
    """Opt-in, the grade "exact". Integer states keep it.

    It breaks where floats are summed, since their order changes with the number of ranks.
    Keep sums that are exact, such as those of integers.
    """
    others = [in_runs(runs.pooled, world) for world in (2, 3, 5, 8)]
    runs.same_value((runs.pooled,), others, " on one rank", BITWISE)


@law(10, "samples that were repeated to fill the last batches change nothing")
def PADDING_REMOVED(runs: Runs) -> None:
    """Opt-in: ``update`` takes ``indices``, the samples' places in the data set, and drops what
    it has seen. torch's ``DistributedSampler`` repeats samples so that all ranks have equally many.

    It breaks where repeated samples count twice. Skip indices that ``update`` has seen.
    """
    try:
        others = [padded(runs.pooled, world) for world in (2, 3)]
    except InputError as error:
        raise NotJudged(f"update cannot tell a repeated sample: {error}") from error
    runs.same_value((runs.pooled,), others, " without the padding")


@law(11, "a second sync, and a second compute, give the first one's value", needs_state=True)
def SYNC_IS_IDEMPOTENT(runs: Runs) -> None:
    """Loggers and callbacks each ask.

    It breaks where ``compute`` changes a state, and where a sync leaves the state of all ranks
    behind, so that the next one counts every rank again. Let ``compute`` only read.
    """
    runs.same_on_each_rank(subject.twice)


@law(12, "computing in the middle changes nothing later", needs_state=True)
def OBSERVATION(runs: Runs) -> None:
    """Logging a running value every hundred steps must not change the epoch's.

    It breaks where the state of all ranks stays in the metric after ``compute``, where ``compute``
    changes a state in place, and where a value is cached that ``update`` does not clear.
    Let ``compute`` only read.
    """
    shards = runs.dense
    if max(map(len, shards)) < 2:
        first, second = runs.parts(2)
        shards = ((*first, *second),) * len(shards)
    note = " without a look at it"
    runs.same_value(shards, [shards], note, scenario=subject.observed)
    # The same without a sync, which puts local state back after compute.
    batches = shards[0]
    half = (len(batches) + 1) // 2
    seen = runs.single(batches[:half], then=batches[half:])
    unseen = runs.single(batches)
    if half < len(batches) and not (seen.error or unseen.error):
        runs.compare(unseen.value, [seen.value], (batches,), f"{note} in one process")


@law(
    13,
    "after a sync the local state is as before, bit by bit, also after an error",
    needs_state=True,
)
def STATE_RESTORED(runs: Runs) -> None:
    """A job that catches an error of ``compute`` and goes on would otherwise count with the state
    of all ranks.

    It breaks where a sync puts the local state back only if all went well, and where ``compute``
    changes what ``update`` has kept. Put the state back in a ``finally``, and let ``compute`` only
    read.
    """
    runs.same_on_each_rank(subject.restored)


@law(14, "every rank makes the same collectives, whatever data it has")
def SAME_SEQUENCE(runs: Runs) -> None:
    """Judged by the list of calls: a sequence that depends on the data pairs with the wrong
    collective of another rank one day.

    It breaks where list states are gathered item by item, and where an ``if`` on local data skips
    a collective. Concatenate lists first, and skip a call only if all ranks skip it.
    """
    shards, batches = runs.dense, runs.pooled
    cut_at = len(batches) - len(shards) + 1
    lopsided = (batches[:cut_at], *in_turn(batches[cut_at:], len(shards) - 1))
    runs.values(shards)
    first = runs.world(shards).collectives[0]
    for dealt in (shards, shards[::-1], in_turn(batches, len(shards)), lopsided):
        runs.values(dealt)
        for calls in runs.world(dealt).collectives:
            if calls != first:
                got = [_listed(calls)]
                raise LawBroken(_listed(first), got, "other data, other calls", dealt)


@law(15, "every rank's collectives find their partners", on_all_shards=True)
def NO_HANG(runs: Runs) -> None:
    """The world of threads decides it at once: a rank that waits for one that has returned, or
    that brings another dtype or shape, is what hangs or aborts on a cluster.

    It breaks where a rank without data makes no collective, or sends a default of another dtype or
    shape. Make the same calls on every rank, or let distmetrics sync.
    """
    shards, batches = runs.dense, runs.pooled
    lone: list[Shards] = [((), *shards), (*shards, ()), ((), batches), (batches, (), ())]
    for dealt in [runs.shards, shards, *lone]:
        world = runs.world(dealt)
        if world.is_stuck:
            error = next(rank.error for rank in world.ended if rank.error)
            raise LawBroken("every rank gets a value", world.ended, str(error), dealt)
    ranks = runs.world(shards).ended
    if all(rank.error for rank in ranks):
        raise NotJudged(f"every rank raises {in_short(ranks[0].error)}")


@law(16, "after reset() a metric is like a new one", needs_state=True)
def RESET_IS_NEW(runs: Runs) -> None:
    """What ``reset`` forgets is carried into the next epoch.

    It breaks where ``update`` changes an attribute that is not a state. States of ``add_state`` are
    reset for you; reset other attributes yourself.
    """
    if not hasattr(runs.subject.make(), "reset"):
        raise NotJudged("it has no reset()")
    runs.same_on_each_rank(subject.reset)


@law(
    17,
    "pickle, deepcopy and state_dict keep the value, in mid-stream and in mid-sync",
    needs_state=True,
)
def ROUND_TRIP(runs: Runs) -> None:
    """Checkpoints are made in the middle of an epoch, and metrics are sent to workers. A metric's
    ``state_dict`` is tried where it has one, made persistent first.

    It breaks where ``__getstate__`` leaves something out, and where attributes that are not states
    hold data. Add them by ``add_state``.
    """
    shards = runs.dense
    expected = runs.values(shards)[0]  # where the sync itself raises, this law says nothing
    runs.values(shards, subject.round_trips, instead=expected)
    runs.same_on_each_rank(subject.round_trips)


@law(18, "values and states keep dtype, shape and device")
def DTYPE_KEPT(runs: Runs) -> None:
    """A count that comes back as float32 loses units above 16 777 216, and a value of another
    dtype breaks callers that were tested on one process.

    It breaks where a state is reduced in another dtype than its own. Reduce in the state's dtype.
    """
    shards = runs.dense
    single, got = runs.single(), runs.values(shards)
    if single.error is None:
        note = " of a single process"
        runs.compare(_types(single.value), [*map(_types, got)], shards, note, BITWISE)
    if runs.subject.sync == "distmetrics" and not runs.subject.is_function:
        runs.same_on_each_rank(subject.synced_dtypes)


@law(19, "bfloat16 input gives the value of the same numbers in float32, within 2 %")
def LOW_PRECISION(runs: Runs) -> None:
    """Opt-in, of :data:`NUMERICS`. Under autocast predictions are half precision.

    It breaks where a sum is kept in bfloat16: a sum of ones stops growing at 256.
    Convert to float32 or float64 before you sum.
    """
    low = _with_floats(runs.dense, lambda x: x.to(torch.bfloat16))
    same = _with_floats(low, lambda x: x.to(torch.float32))
    _accepted(runs.single(low[0]), "bfloat16 input")
    runs.same_value(same, [low], " in float32", _HALF_PRECISION)


@law(
    20,
    "a count above 2²⁴ still grows by one",
    needs_state=True,
    not_own="states are doubled by distmetrics' sync",
)
def LARGE_COUNTS(runs: Runs) -> None:
    """Opt-in, of :data:`NUMERICS`.

    It breaks where counts are kept in float32, which holds integers up to 16 777 216.
    Count in int64 or float64.
    """
    shards = runs.parts(2)
    states = runs.values(shards, subject.doubled)
    if not states[0]:
        raise NotJudged("it has states that are no sums, which cannot be doubled that often")
    (big, total), (added, _) = states
    for name in added:
        if _is_count(big[name]) and _is_count(added[name]):
            expected = big[name].double() + added[name].double()
            note = f", the state {name} ({big[name].dtype}) after a batch was added"
            runs.compare(expected, [total[name].double()], shards, note, BITWISE)


@law(21, "adding a constant to all numbers leaves the value")
def SHIFT(runs: Runs) -> None:
    """Opt-in, of :data:`NUMERICS`, for metrics of which theory says so: variance, correlation,
    mean error.

    It breaks where large numbers cancel, as in ``E[x²] − E[x]²``. Keep centred moments.
    """
    more = _with_floats(runs.dense, lambda x: x + 1000)
    runs.same_value(runs.dense, [more], " before 1000 was added to all", _SHIFTED)


@law(22, "NaN and infinity in the data reach all ranks or none, as in a single process")
def NAN_EVERYWHERE(runs: Runs) -> None:
    """One NaN on one rank must not make that rank alone stop, or pick another checkpoint.

    It breaks where merging drops a rank's NaN (``nansum``, or a comparison such as ``x > best``).
    Filter samples in ``update``, or let NaN into the state.
    """
    *others, last = runs.dense
    for bad in (torch.nan, torch.inf):

        def spoil(x: Tensor, bad: float = bad) -> Tensor:
            x = x.clone()
            x.reshape(-1)[:1] = bad
            return x

        spoiled = _with_floats((last[:1],), spoil)
        shards = (*others, (*spoiled[0], *last[1:]))
        single = _accepted(runs.single([*chain.from_iterable(shards)]), str(bad))
        expected, *got = map_leaves(_not_finite, [single, *runs.values(shards)])
        runs.compare(expected, got, shards, f" with {bad} in the data", BITWISE)


@law(
    23,
    "the same values inside a group of some of the ranks",
    needs_state=True,
    not_own="a metric's own sync takes its group when it is made",
)
def SUBGROUP(runs: Runs) -> None:
    """Tensor-parallel and hybrid jobs sync metrics within a data-parallel group. It is judged of
    distmetrics' sync only: the metric's own takes its group when it is made.

    It breaks where ``compute`` uses the world size instead of the group's size.
    Count ranks in a state.
    """
    shards = runs.dense
    more = (shards[0], (), *shards[1:])
    in_group = runs.values(more, subject.in_subgroup)
    in_group = [*in_group[:1], *in_group[2:]]
    # Each rank is compared with itself: whether ranks agree is another law.
    for expected, got in zip(runs.values(shards), in_group, strict=True):
        runs.compare(expected, [got], more, " in a world of its own")


@law(
    24,
    "metrics that are synced together get the values that they get one by one",
    needs_state=True,
    not_own="a metric's own sync is of one metric",
)
def COLLECTION(runs: Runs) -> None:
    """A run logs several metrics, most of them in one sync.

    It breaks where metrics share data by mistake: class attributes, a mutable default.
    Create all data of a metric in its ``__init__``.
    """
    shards = runs.dense
    runs.same_on_each_rank(subject.beside_another)
    together = runs.values(shards, subject.beside_another)[0][0].got["whole"]
    alone = runs.values(shards)[0]
    runs.compare(alone, [together], shards, " when no other metric is about")


_OF_LAYOUTS = "a metric's own sync knows no layout"


@law(25, "ranks that hold the same samples change nothing", needs_state=True, not_own=_OF_LAYOUTS)
def REPLICA_NEUTRAL(runs: Runs) -> None:
    """Opt-in, of :data:`LAYOUTS`, as are the next two: over the ranks of a layout, by default
    ``{"dp": 2, "tp": 2, "pp": 2}``. The ranks of a tensor-parallel group hold the same samples,
    which must count once.

    It breaks where a state depends on more than the samples: random numbers, the rank, the time.
    A sync over a layout then raises an error. Compute states from the samples alone.
    """
    what = "ranks with the same samples"
    for mesh, parts, expected in _meshes(runs, what, lambda mesh: mesh.axes(SAME)):
        # Ranks that differ are an error.
        _compare(runs, mesh, parts, parts, expected, " of the shards alone", instead=expected)


@law(26, "the order of a mesh's axes is irrelevant", needs_state=True, not_own=_OF_LAYOUTS)
def AXIS_ORDER(runs: Runs) -> None:
    """Opt-in, of :data:`LAYOUTS`. Which rank has which number says nothing about the samples. Axes
    of shards keep their order among each other, about which "rank-order" speaks.

    It breaks where ``update`` or ``compute`` reads the rank. Compute from the samples alone.
    """
    for mesh, parts, expected in _meshes(runs, "two axes that can be swapped", _others):
        shards, others = mesh.axes(SHARD), _others(mesh)
        for axes in ([*shards, *others], [*reversed(others), *shards]):
            swapped = Mesh({axis: mesh.sizes[axis] for axis in axes}, mesh.roles)
            note = f" with the axes in the order {axes}"
            _compare(runs, swapped, parts, parts, expected, note)


@law(
    27,
    "where one coordinate has the values, only that one counts",
    needs_state=True,
    not_own=_OF_LAYOUTS,
)
def OWNER_ONLY(runs: Runs) -> None:
    """Opt-in, of :data:`LAYOUTS`. All pipeline stages but the last have no loss. What they pass
    must not count, and they get the result.

    It breaks where ranks share data outside of states, such as a file that ``update`` writes.
    Keep data in the metric's states.
    """
    for mesh, parts, expected in _meshes(runs, "an owner", lambda mesh: mesh.owned):
        others = tuple(part + part for part in reversed(parts))
        _compare(runs, mesh, parts, others, expected, " of the owners alone")


_HALF_PRECISION = Equality("relative 0.02, absolute 0.02", 0.02, 0.02, types=False)
_SHIFTED = Equality("relative 0.001", 1e-3, 1e-3, types=False)


def _changed(shards: Shards, change: Callable[[Batch], Batch]) -> Shards:
    return tuple(tuple(map(change, shard)) for shard in shards)


def _listed(collectives: tuple[str, ...]) -> str:
    return f"{len(collectives)} collectives: {', '.join(collectives[:6])}"


def _types(value: Any) -> Any:
    """Return the dtypes and devices of a value's tensors, and the types of what else it has."""
    if isinstance(value, dict):
        return {key: _types(each) for key, each in value.items()}
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} on {value.device}"
    return type(value).__name__  # the length of a list does not belong to its type


def _with_floats(shards: Shards, change: Callable[[Tensor], Tensor]) -> Shards:
    """Change the floating tensors of all batches, of which there must be some."""
    arguments = [x for shard in shards for batch in shard for x in arguments_of(batch)]
    if not any(map(is_floating, arguments)):
        raise NotJudged("no argument is a tensor of floats")
    return _changed(shards, lambda batch: changed_floats(batch, change))


def _is_count(x: Any) -> bool:
    """Return True if all numbers of a tensor are whole, so that they count something."""
    if not isinstance(x, Tensor) or not x.numel() or x.is_complex():
        return False
    numbers = x.double()
    return torch.equal(numbers, numbers.round())


def _not_finite(leaf: Any) -> Any:
    """Return where numbers are not finite."""
    if isinstance(leaf, Tensor):
        return (~leaf.isfinite()).tolist()
    return isinstance(leaf, float) and not math.isfinite(leaf)


def _others(mesh: Mesh) -> list[str]:
    shards = mesh.axes(SHARD)
    return [axis for axis in mesh.sizes if axis not in shards]


def _meshes(
    runs: Runs, what: str, has_it: Callable[[Mesh], Any]
) -> Iterator[tuple[Mesh, Shards, Any]]:
    """Yield the meshes that have something, what each shard has, and the value of so many ranks."""
    kept = list(filter(has_it, runs.meshes))
    if not kept:
        raise NotJudged(f"no layout has {what}")
    for mesh in kept:
        parts = runs.parts(len(mesh.along(0, mesh.axes(SHARD))))
        yield mesh, parts, runs.values(parts)[0]


def _compare(
    runs: Runs,
    mesh: Mesh,
    parts: Shards,
    of_others: Shards,
    expected: Any,
    note: str,
    **instead: Any,
) -> None:
    """Compare the value over a mesh: ranks without values get batches of others."""
    shards = mesh.axes(SHARD)
    dealt = tuple(
        (parts if mesh.owns(rank) else of_others)[mesh.along(rank, shards).index(rank)]
        for rank in mesh.ranks
    )
    scenario = subject.OverLayout(tuple(mesh.sizes.items()))
    runs.compare(expected, runs.values(dealt, scenario, **instead), dealt, note)


def _accepted(single: Outcome, what: str) -> Any:
    """Return the value of a single process."""
    if single.error:
        raise NotJudged(f"{what} is refused: {in_short(single.error)}")
    return single.value


_values = list(globals().values())
#: Every law.
ALL = Laws(frozenset(value for value in _values if isinstance(value, Law)))
#: Laws of precision, on values in low precision, large counts, and shifted data.
NUMERICS = LOW_PRECISION | LARGE_COUNTS | SHIFT
#: Laws of layouts, which ``check_metric`` judges where it is given some.
LAYOUTS = REPLICA_NEUTRAL | AXIS_ORDER | OWNER_ONLY
#: The law ``WORLD_SIZE``, that the value has the same bits for 1, 2, 3, 5 and 8 ranks.
EXACT = Laws.of(WORLD_SIZE)
#: The laws that are judged by default, all but those of the other sets and ``PADDING_REMOVED``.
DEFAULT = ALL - NUMERICS - LAYOUTS - EXACT - PADDING_REMOVED


def find(name: Any) -> Law:
    """Return the law of a name or number.

    Args:
        name: such as "no-hang", "NO_HANG" or 15.

    Raises:
        InputError: there is no such law.

    >>> find("no-hang") is NO_HANG is find(15)
    True
    """
    wanted = str(name).strip().lower().replace("_", "-")
    for each in ALL:
        if wanted in (each.name, str(each.number)):
            return each
    raise InputError(f"there is no law {name!r}; there are {', '.join(map(str, ALL))}")
