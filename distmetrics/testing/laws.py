"""The laws that a metric keeps if its number is the single process's, under any sharding.

Model: ``make()`` makes a metric, batches are dealt to ranks by a partition P, and S(P) is the value
that each rank gets after a sync. Every law is a value with a name and a page; laws combine with
``|`` and ``-``, and one that a metric cannot keep is declared off, with a reason that reports
repeat:

>>> chosen = DEFAULT.off(RANK_ORDER, because="the value is a list in rank order") | WORLD_SIZE
>>> RANK_ORDER in chosen, WORLD_SIZE in chosen, len(ALL)
(False, True, 27)
"""

from typing import Any

from distmetrics.errors import InputError
from distmetrics.testing.law import Law, Laws
from distmetrics.testing.law_checks import layouts, state, values

__all__ = ["ALL", "DEFAULT", "EXACT", "LAYOUTS", "NUMERICS", "Law", "Laws", "find"]

_OF_LAYOUTS = "a metric's own sync knows no layout"

SINGLE_IS_SHARDED = Law(
    1,
    "single-is-sharded",
    "the value is the one that a single process gets from all the data",
    """However the batches are dealt to ranks that all have some, each rank's value after the
    sync is that of one process which was updated with all of them, in rank order.

    It breaks where values rather than states are averaged, where a rank's share has no weight,
    and where a state that is no sum is declared ``dist_reduce_fx="sum"``.
    Keep sums and counts as states, and divide in ``compute``.""",
    values.single_is_sharded,
    on_all_shards=True,
)
RANKS_AGREE = Law(
    2,
    "ranks-agree",
    "all ranks get the same value, bit by bit",
    """A checkpoint callback decides on every rank by itself; ranks that see different numbers
    take different branches, and the job hangs in the next collective. It breaks where
    ``compute`` reads the rank, local data, or random numbers.""",
    values.ranks_agree,
    on_all_shards=True,
)
EMPTY_RANK_IS_NEUTRAL = Law(
    3,
    "empty-rank-is-neutral",
    "a rank that was never updated changes nothing",
    """The last shard of a small validation set is often empty. It breaks where a default state
    is no neutral element (a 1 that is multiplied in, a mean over ranks), and where ``compute``
    reads an attribute that only ``update`` sets.""",
    values.empty_rank,
    on_all_shards=True,
)
EMPTY_BATCH_IS_NEUTRAL = Law(
    4,
    "empty-batch-is-neutral",
    "an update with no samples changes nothing",
    """Filtering may leave a batch without samples. It breaks by dividing by the batch's size in
    ``update`` (NaN), and by counting batches instead of samples. An ``update`` that refuses
    empty input with an error keeps the law.""",
    values.empty_batch,
    needs_state=True,
)
ASSOCIATIVE = Law(
    5,
    "associative",
    "merging (a, b) and then c is merging a and then (b, c)",
    """Trees of ranks, and checkpoints of partial results, merge in another order than a flat
    sync. It breaks for a mean of means and for states that are overwritten.""",
    values.associative,
    needs_state=True,
    not_own="a metric's own sync merges all ranks at once",
)
RANK_ORDER = Law(
    6,
    "rank-order",
    "the order of the ranks is irrelevant",
    """Whether a shard is rank 0's or rank 3's says nothing about the data. Declare it off for a
    metric whose value is in order of the samples (``laws.DEFAULT.off(laws.RANK_ORDER,
    because="ordered")``).""",
    values.rank_order,
)
SAMPLE_ORDER = Law(
    7,
    "sample-order",
    "the order of the samples is irrelevant, within batches and across them",
    """A sampler shuffles. It breaks for metrics that depend on the batch (a mean of batch
    values), and off it must be declared for ordered ones.""",
    values.sample_order,
)
BATCH_SPLIT = Law(
    8,
    "batch-split",
    "two updates with parts of a batch are one update with all of it",
    """The batch size is no property of the data. It breaks where a batch's value is averaged
    over batches, and where the first batch decides about something.""",
    values.batch_split,
)
WORLD_SIZE = Law(
    9,
    "world-size",
    "the value has the same bits for 1, 2, 3, 5 and 8 ranks",
    """Opt-in, the grade "exact". Integer states keep it; sums of floats do not, as their order
    changes, unless they are kept exactly.""",
    values.world_size,
)
PADDING_REMOVED = Law(
    10,
    "padding-removed",
    "samples that were repeated to fill the last batches change nothing",
    """Opt-in: ``update`` takes ``indices``, the samples' places in the data set, and drops what
    it has seen. torch's ``DistributedSampler`` repeats samples so that all ranks have equally
    many, which otherwise counts them twice.""",
    values.padding_removed,
)
SYNC_IS_IDEMPOTENT = Law(
    11,
    "sync-is-idempotent",
    "a second sync, and a second compute, give the first one's value",
    """Loggers and callbacks each ask. It breaks where ``compute`` changes a state, or a sync
    leaves the state of all ranks behind, so that the next one counts every rank again.""",
    state.sync_is_idempotent,
    needs_state=True,
)
OBSERVATION = Law(
    12,
    "observation",
    "computing in the middle changes nothing later",
    """Logging a running value every hundred steps must not change the epoch's. It breaks where
    the state of all ranks stays in after ``compute``, or ``compute`` changes it in place.""",
    state.observation,
    needs_state=True,
)
STATE_RESTORED = Law(
    13,
    "state-restored",
    "after a sync the local state is as before, bit by bit, also after an error",
    """A job that catches an error of ``compute`` and goes on would otherwise count with the
    state of all ranks.""",
    state.state_restored,
    needs_state=True,
)
SAME_SEQUENCE = Law(
    14,
    "same-sequence",
    "every rank makes the same collectives, whatever data it has",
    """Judged by the transcript, not by luck: a sequence that depends on the data pairs with the
    wrong collective of another rank one day. It breaks where list states are gathered item by
    item, and under ``if`` on local data.""",
    values.same_sequence,
)
NO_HANG = Law(
    15,
    "no-hang",
    "every rank's collectives find their partners",
    """The world of threads decides it at once: a rank that waits for one that has returned, or
    that brings another dtype or shape, is what hangs or aborts on a cluster.""",
    values.no_hang,
    on_all_shards=True,
)
RESET_IS_NEW = Law(
    16,
    "reset-is-new",
    "after reset() a metric is like a new one",
    """What ``reset`` forgets is carried into the next epoch. States of ``add_state`` are reset
    for you; other attributes are yours to reset.""",
    state.reset_is_new,
    needs_state=True,
)
ROUND_TRIP = Law(
    17,
    "round-trip",
    "pickle, deepcopy and state_dict keep the value, in mid-stream and in mid-sync",
    """Checkpoints in the middle of an epoch, and metrics sent to workers. It breaks with custom
    ``__getstate__`` and for attributes that are no states. A metric's ``state_dict`` is tried
    where it has one, made persistent first.""",
    state.round_trip,
    needs_state=True,
)
DTYPE_KEPT = Law(
    18,
    "dtype-kept",
    "values and states keep dtype, shape and device",
    """A count that comes back as float32 loses units above 16 777 216, and a value of another
    dtype breaks callers that were tested on one process.""",
    state.dtype_kept,
)
LOW_PRECISION = Law(
    19,
    "low-precision",
    "bfloat16 input gives the value of the same numbers in float32, within 2 %",
    """Opt-in, of :data:`NUMERICS`. Under autocast predictions are half precision; a sum that is
    kept in it stops growing at 256.""",
    values.low_precision,
)
LARGE_COUNTS = Law(
    20,
    "large-counts",
    "a count above 2²⁴ still grows by one",
    """Opt-in, of :data:`NUMERICS`. float32 holds integers up to 16 777 216; count in int64 or
    float64.""",
    values.large_counts,
    needs_state=True,
    not_own="states are doubled by distmetrics' sync",
)
SHIFT = Law(
    21,
    "shift",
    "adding a constant to all numbers leaves the value",
    """Opt-in, of :data:`NUMERICS`, for metrics of which theory says so: variance, correlation,
    mean error. It breaks by cancellation in ``E[x²] − E[x]²``; keep centred moments.""",
    values.shift,
)
NAN_EVERYWHERE = Law(
    22,
    "nan-everywhere",
    "NaN and infinity in the data reach all ranks or none, as in a single process",
    """One NaN on one rank must not make that rank alone stop, or pick another checkpoint. It
    breaks where NaN is filtered by a comparison on one rank's value.""",
    values.nan_everywhere,
)
SUBGROUP = Law(
    23,
    "subgroup",
    "the same values inside a group of some of the ranks",
    """Tensor-parallel and hybrid jobs sync metrics within a data-parallel group. Only of
    distmetrics' sync: the metric's own takes its group when it is made.""",
    state.subgroup,
    needs_state=True,
    not_own="a metric's own sync takes its group when it is made",
)
COLLECTION = Law(
    24,
    "collection",
    "metrics that are synced together get the values that they get one by one",
    """It breaks where metrics share state by mistake: class attributes, a mutable default.""",
    state.collection,
    needs_state=True,
    not_own="a metric's own sync is of one metric",
)

REPLICA_NEUTRAL = Law(
    25,
    "replica-neutral",
    "ranks that hold the same samples change nothing",
    """Opt-in, of :data:`LAYOUTS`, as are the next two: over the ranks of a layout, by default
    ``{"dp": 2, "tp": 2, "pp": 2}``. The ranks of a tensor-parallel group hold the same samples,
    which must count once. It breaks where a state is not a function of the samples: random
    numbers, the rank, the time; a layout tells that as an error.""",
    layouts.replica_neutral,
    needs_state=True,
    not_own=_OF_LAYOUTS,
)
AXIS_ORDER = Law(
    26,
    "axis-order",
    "the order of a mesh's axes is irrelevant",
    """Opt-in, of :data:`LAYOUTS`. Which rank has which number says nothing about the samples.
    Axes of shards keep their order among each other, of which "rank-order" speaks.""",
    layouts.axis_order,
    needs_state=True,
    not_own=_OF_LAYOUTS,
)
OWNER_ONLY = Law(
    27,
    "owner-only",
    "where one coordinate has the values, only that one counts",
    """Opt-in, of :data:`LAYOUTS`. All pipeline stages but the last have no loss, and what they
    pass must not count; they get the result.""",
    layouts.owner_only,
    needs_state=True,
    not_own=_OF_LAYOUTS,
)

_values = list(globals().values())
ALL = Laws(frozenset(value for value in _values if isinstance(value, Law)))
NUMERICS = LOW_PRECISION | LARGE_COUNTS | SHIFT
LAYOUTS = REPLICA_NEUTRAL | AXIS_ORDER | OWNER_ONLY
EXACT = Laws.of(WORLD_SIZE)
DEFAULT = ALL - NUMERICS - LAYOUTS - EXACT - PADDING_REMOVED


def find(name: Any) -> Law:
    """Return the law of a name or number.

    >>> find("no-hang") is NO_HANG is find(15)
    True

    Raises:
        InputError: there is no such law.
    """
    wanted = str(name).strip().lower().replace("_", "-")
    for law in ALL:
        if wanted in (law.name, str(law.number)):
            return law
    raise InputError(f"there is no law {name!r}; there are {', '.join(map(str, ALL))}")
