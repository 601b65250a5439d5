"""Checks of the laws about what a metric holds, and how it is synced, reset and copied."""

from typing import Any

from torch import Tensor

from distmetrics.testing import scenarios
from distmetrics.testing.equality import BITWISE
from distmetrics.testing.trial import LawBroken, NotJudged, Trial, compare, no_error


def sync_is_idempotent(trial: Trial) -> None:
    """Sync and compute twice."""
    trial.same_on_each_rank(scenarios.twice)


def observation(trial: Trial) -> None:
    """Compute in the middle."""
    shards = trial.dense
    if max(map(len, shards)) < 2:
        first, second = trial.parts(2)
        shards = ((*first, *second),) * len(shards)
    note = " without a look at it"
    trial.same_value(shards, [shards], note, scenario=scenarios.observed)
    # The same without a sync, which puts local state back after compute.
    batches = shards[0]
    half = (len(batches) + 1) // 2
    seen = trial.single(batches[:half], then=batches[half:])
    unseen = trial.single(batches)
    if half < len(batches) and {seen.kind, unseen.kind} == {"value"}:
        compare(unseen.value, [seen.value], trial.loosely, (batches,), f"{note} in one process")


def state_restored(trial: Trial) -> None:
    """Compare local states before and after a sync, and after an error in one."""
    trial.same_on_each_rank(scenarios.restored)


def reset_is_new(trial: Trial) -> None:
    """Use, reset, use again."""
    if not hasattr(trial.subject.make(), "reset"):
        raise NotJudged("it has no reset()")
    trial.same_on_each_rank(scenarios.reset)


def round_trip(trial: Trial) -> None:
    """Copy in every way, in the middle of the batches and of a sync."""
    shards = trial.dense
    expected = trial.values(shards)[0]  # where the sync itself raises, this law says nothing
    no_error(expected, trial.settled(shards, scenarios.round_trips), shards)
    trial.same_on_each_rank(scenarios.round_trips)


def dtype_kept(trial: Trial) -> None:
    """Compare types of values with the single process's, and of states with the local ones."""
    shards = trial.dense
    single, got = trial.single(), trial.values(shards)
    if single.kind == "value":
        types = [_types(value) for value in got]
        compare(_types(single.value), types, BITWISE, shards, " of a single process")
    if trial.subject.sync == "distmetrics" and not trial.subject.is_function:
        trial.same_on_each_rank(scenarios.synced_dtypes)


def _types(value: Any) -> Any:
    """Return the dtypes and devices of a value's tensors, and the types of what else it has."""
    if isinstance(value, dict):
        return {key: _types(each) for key, each in value.items()}
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} on {value.device}"
    return type(value).__name__  # of a list its length is no matter of types


def subgroup(trial: Trial) -> None:
    """Let a rank stand by that is in no group."""
    shards = trial.dense
    more = (shards[0], (), *shards[1:])
    in_group = trial.values(more, scenarios.in_subgroup)
    in_group = [*in_group[:1], *in_group[2:]]
    # Each rank is compared with itself: whether ranks agree is another law.
    for rank, expected in enumerate(trial.values(shards)):
        if difference := trial.loosely.difference(expected, in_group[rank]):
            detail = f"rank {rank} of the group: {difference} in a world of its own"
            raise LawBroken(expected, in_group, detail, more)


def collection(trial: Trial) -> None:
    """Sync two together, and each by itself."""
    shards = trial.dense
    trial.same_on_each_rank(scenarios.beside_another)
    of_first_rank = trial.values(shards, scenarios.beside_another)[0]
    together = of_first_rank[0].got["whole"]
    alone = trial.values(shards)[0]
    note = " when no other metric is about"
    compare(alone, [together], trial.loosely, shards, note)
