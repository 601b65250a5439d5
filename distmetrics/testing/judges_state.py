"""Judges of the laws about a metric's state, its sync and its collectives; see
:mod:`distmetrics.testing.judges`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from distmetrics.testing import acts, laws
from distmetrics.testing.equality import BITWISE, brief
from distmetrics.testing.judges import (
    compare,
    dense,
    judges,
    ours,
    parts,
    stateful,
    valid,
    valued,
    values,
)
from distmetrics.testing.shards import deal
from distmetrics.testing.trial import Broken, NotJudged, Shards, Trial

__all__: list[str] = []


@judges(laws.SYNC_IS_IDEMPOTENT)
def idempotent(trial: Trial) -> Broken | None:
    """Sync and compute twice."""
    stateful(trial)
    for number, (first, second) in enumerate(values(trial, dense(trial), acts.twice)):
        if found := BITWISE.difference(first, second):
            detail = f"rank {number}, the second time: {found} of the first"
            return Broken(brief(first), (brief(second),), detail, trial.dense)
    return None


@judges(laws.OBSERVATION)
def observation(trial: Trial) -> Broken | None:
    """Compute in the middle."""
    stateful(trial)
    shards = dense(trial)
    if max(map(len, shards)) < 2:
        shards = parts(trial, 2)
        shards = ((*shards[0], *shards[1]),) * len(trial.dense)
    expected = values(trial, shards)[0]
    return compare(
        expected,
        values(trial, shards, acts.observed)[:1],
        valued(trial),
        shards,
        " without a look at it",
    )


@judges(laws.STATE_RESTORED)
def state_restored(trial: Trial) -> Broken | None:
    """Compare local states before and after a sync, and after an error in one."""
    stateful(trial)
    shards = dense(trial)
    for number, (before, *afters) in enumerate(values(trial, shards, acts.restored)):
        for after, when in zip(afters, ("a sync", "an error in a sync"), strict=False):
            if found := BITWISE.difference(before, after):
                detail = f"the local state of rank {number} after {when}: {found}"
                return Broken(brief(before), (brief(after),), detail, shards)
    return None


@judges(laws.SAME_SEQUENCE)
def same_sequence(trial: Trial) -> Broken | None:
    """Compare the transcripts of ranks, and of other dealings of the same batches."""
    shards = dense(trial)
    pooled = trial.pooled
    last = len(shards) - 1
    evenly = deal(pooled, [i % len(shards) for i in range(len(pooled))], len(shards))
    lopsided = deal(
        pooled, [max(0, i - len(pooled) + 1 + last) for i in range(len(pooled))], len(shards)
    )
    others = [shards, shards[::-1], *(dealing for dealing in (evenly, lopsided) if all(dealing))]
    seen: list[tuple[Shards, list[str]]] = []
    for dealing in others:
        values(trial, dealing)
        ranks = [rank.value[1] for rank in trial.world(dealing)]
        seen += [(dealing, ops) for ops in ranks]
    first = seen[0][1]
    for dealing, ops in seen[1:]:
        if ops != first:
            got = f"{len(ops)} collectives: {', '.join(ops[:6])}"
            return Broken(
                f"{len(first)} collectives: {', '.join(first[:6])}",
                (got,),
                "other data, other calls",
                dealing,
            )
    return None


@judges(laws.RESET_IS_NEW)
def reset_is_new(trial: Trial) -> Broken | None:
    """Use, reset, use again."""
    stateful(trial)
    if not hasattr(trial.subject.make(), "reset"):
        raise NotJudged("it has no reset()")
    shards = dense(trial)
    expected = values(trial, shards)
    for number, (new, again, value) in enumerate(values(trial, shards, acts.reset)):
        if found := BITWISE.difference(new, again):
            return Broken(
                brief(new),
                (brief(again),),
                f"the state of rank {number} after reset(): {found}",
                shards,
            )
        if found := valued(trial).difference(expected[number], value):
            detail = f"rank {number}, used again after reset(): {found}"
            return Broken(brief(expected[number]), (brief(value),), detail, shards)
    return None


@judges(laws.ROUND_TRIP)
def round_trip(trial: Trial) -> Broken | None:
    """Copy in every way, in mid-stream and in mid-sync."""
    stateful(trial)
    shards = dense(trial)
    expected = values(trial, shards)[0]
    ended = trial.world(shards, acts.round_trips)
    for number, rank in enumerate(ended):
        if rank.kind == "raised":
            return Broken(
                brief(expected),
                (rank.text,),
                f"rank {number} cannot copy the metric: {rank.text}",
                shards,
            )
    for way in valid(ended)[0].value:
        got = [rank.value[way] for rank in ended]
        if broken := compare(expected, got[:1], valued(trial), shards, f" without a copy ({way})"):
            return broken
    return None


@judges(laws.DTYPE_KEPT)
def dtype_kept(trial: Trial) -> Broken | None:
    """Compare the types of values with the single process's, and of states with the local ones."""
    shards = dense(trial)
    single, got = trial.single(), values(trial, shards)
    for number, value in enumerate(got if single.kind == "value" else []):
        if found := BITWISE.difference(_types(single.value), _types(value)):
            detail = f"rank {number}: {found} of a single process"
            return Broken(
                brief(_types(single.value)), tuple(brief(_types(x)) for x in got), detail, shards
            )
    if trial.subject.sync != "distmetrics" or trial.subject.is_function:
        return None
    for number, (local, synced) in enumerate(values(trial, shards, acts.synced_dtypes)):
        before = {
            name: kinds for name, kinds in local.items() if kinds
        }  # a list without items has no type to keep
        after = {name: synced.get(name, "") for name in before}
        if found := BITWISE.difference(before, after):
            return Broken(
                brief(before),
                (brief(after),),
                f"states of all ranks, on rank {number}: {found}",
                shards,
            )
    return None


def _types(value: Any) -> Any:
    """Return the dtypes and devices of a value's tensors, and the types of what else it has."""
    if isinstance(value, dict):
        return {key: _types(each) for key, each in value.items()}
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} on {value.device}"
    return type(value).__name__  # of a list its length is no matter of types


@judges(laws.SUBGROUP)
def subgroup(trial: Trial) -> Broken | None:
    """Let a rank stand by that is in no group."""
    ours(trial, "a metric's own sync takes its group when it is made")
    shards = dense(trial)
    more = (shards[0], (), *shards[1:])
    got = [value for rank, value in enumerate(values(trial, more, acts.in_subgroup)) if rank != 1]
    for rank, expected in enumerate(
        values(trial, shards)
    ):  # each with itself: whether they agree is another law
        if found := valued(trial).difference(expected, got[rank]):
            detail = f"rank {rank} of the group: {found} in a world of its own"
            return Broken(brief(expected), tuple(map(brief, got)), detail, more)
    return None


@judges(laws.COLLECTION)
def collection(trial: Trial) -> Broken | None:
    """Sync two together, and one by one."""
    ours(trial, "a metric's own sync is of one metric")
    shards = dense(trial)
    for number, (together, apart) in enumerate(values(trial, shards, acts.beside_another)):
        if found := BITWISE.difference(apart, together):
            return Broken(
                brief(apart), (brief(together),), f"rank {number}, synced together: {found}", shards
            )
    alone = values(trial, shards)[0]
    got = [together["whole"] for together, _ in values(trial, shards, acts.beside_another)]
    return compare(alone, got[:1], valued(trial), shards, " when no other metric is about")
