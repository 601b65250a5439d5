"""How each law is judged on one case: a function from a trial to what is broken, or None.

Judges compare runs with runs, so that one fault breaks the law that it is about and not all of
them: the law of the empty rank compares a world with an empty rank to the same world without it,
not to the single process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from distmetrics.errors import InputError
from distmetrics.testing import acts, laws
from distmetrics.testing.equality import BITWISE, Equality, brief
from distmetrics.testing.laws import Law
from distmetrics.testing.rows import Batch, count, join, take
from distmetrics.testing.shards import deal, padded
from distmetrics.testing.trial import Broken, Ended, NotJudged, Shards, Trial

Judge = Callable[[Trial], Broken | None]
JUDGES: dict[Law, Judge] = {}


def judges(law: Law) -> Callable[[Judge], Judge]:
    """Say which law a function judges."""

    def register(judge: Judge) -> Judge:
        JUDGES[law] = judge
        return judge

    return register


def values(trial: Trial, shards: Shards, act: acts.Act = acts.plain) -> list[Any]:
    """Return each rank's value; a world that got stuck or raised is for other laws to judge."""
    ended = trial.world(shards, act)
    for rank in ended:
        if rank.kind == "stuck":
            raise NotJudged(f"the ranks got stuck, see {laws.NO_HANG}: {rank.text}")
    for rank in ended:
        if rank.kind == "raised":
            raise NotJudged(f"the sync raises {rank.text}")
    return [rank.value[0] if act is acts.plain else rank.value for rank in ended]


def dense(trial: Trial) -> Shards:
    """Return the shards that have samples, of which there must be some."""
    if not trial.dense:
        raise NotJudged("no rank has samples")
    return trial.dense


def stateful(trial: Trial) -> None:
    """Leave functions out."""
    if trial.subject.is_function:
        raise NotJudged("a function holds no state")


def ours(trial: Trial, why: str) -> None:
    """Leave a metric's own sync out."""
    if trial.subject.sync != "distmetrics":
        raise NotJudged(why)
    stateful(trial)


def compare(
    expected: Any, got: Sequence[Any], equality: Equality, shards: Shards, note: str = ""
) -> Broken | None:
    """Compare every rank's value with one that was expected."""
    for rank, value in enumerate(got):
        if found := equality.difference(expected, value):
            return Broken(
                brief(expected), tuple(map(brief, got)), f"rank {rank}: {found}{note}", shards
            )
    return None


def valued(trial: Trial) -> Equality:
    """Return the trial's equality without types, of which a law of its own speaks."""
    e = trial.equality
    return Equality(e.name, e.rtol, e.atol, e.bitwise, types=False)


@judges(laws.SINGLE_IS_SHARDED)
def single_is_sharded(trial: Trial) -> Broken | None:
    """Compare with one process, which may raise as long as the ranks do too."""
    shards = dense(trial)
    single, ranks = trial.single(), trial.world(shards)
    if any(rank.kind == "stuck" for rank in ranks):
        raise NotJudged(f"the ranks got stuck, see {laws.NO_HANG}")
    if single.kind == "raised":
        if all(rank.kind == "raised" for rank in ranks):
            raise NotJudged(f"a single process raises {single.text}")
        return Broken(single.text, told(ranks), "a value where a single process raises", shards)
    for number, rank in enumerate(ranks):
        if rank.kind == "raised":
            return Broken(
                brief(single.value), told(ranks), f"rank {number} raises {rank.text}", shards
            )
    return compare(single.value, [ranks[0].value[0]], valued(trial), shards)


def told(ranks: Sequence[Ended]) -> tuple[str, ...]:
    """Write how ranks ended."""
    return tuple(
        rank.text
        if rank.kind != "value"
        else brief(rank.value[0] if isinstance(rank.value, tuple) else rank.value)
        for rank in ranks
    )


@judges(laws.RANKS_AGREE)
def ranks_agree(trial: Trial) -> Broken | None:
    """Compare all ranks with rank 0, bit by bit."""
    got = values(trial, trial.shards)
    return compare(got[0], got, BITWISE, trial.shards, " of rank 0")


@judges(laws.EMPTY_RANK_IS_NEUTRAL)
def empty_rank(trial: Trial) -> Broken | None:
    """Add a rank without data in the first, in the last and in every other place."""
    shards = dense(trial)
    expected = values(trial, shards)[0]
    for more in (((), *shards), (*shards, ()), ((), *shards, (), ())):
        ended = trial.world(more)
        if any(rank.kind == "stuck" for rank in ended):
            raise NotJudged(f"the ranks got stuck, see {laws.NO_HANG}")
        for number, rank in enumerate(ended):
            if rank.kind == "raised":
                return Broken(
                    brief(expected), told(ended), f"rank {number} raises {rank.text}", more
                )
        if broken := compare(
            expected, [ended[0].value[0]], valued(trial), more, " without the empty rank"
        ):
            return broken
    return None


@judges(laws.EMPTY_BATCH_IS_NEUTRAL)
def empty_batch(trial: Trial) -> Broken | None:
    """Add an update with no samples in front and at the end."""
    stateful(trial)
    shards = dense(trial)
    if not count(shards[0][0]):
        raise NotJudged("the batches' arguments have no axis of samples in common")
    nothing = take(shards[0][0], [])
    if (alone := trial.single((nothing, *trial.pooled))).kind == "raised":
        raise NotJudged(f"an update with no samples is refused: {alone.text}")
    expected = values(trial, shards)[0]
    more = (
        ((nothing, *shards[0]), *shards[1:-1], (*shards[-1], nothing))
        if shards[1:]
        else ((nothing, *shards[0]),)
    )
    return compare(
        expected, values(trial, more)[:1], valued(trial), more, " without the empty batches"
    )


@judges(laws.ASSOCIATIVE)
def associative(trial: Trial) -> Broken | None:
    """Merge three parts from the left and from the right."""
    ours(trial, "a metric's own sync merges all ranks at once")
    a, b, c = parts(trial, 3)
    left = merge_then(trial, (a, b), c, first=True)
    right = merge_then(trial, (b, c), a, first=False)
    return compare(left, [right], valued(trial), (a, b, c), " when the first two are merged first")


def merge_then(trial: Trial, pair: Shards, rest: tuple[Batch, ...], *, first: bool) -> Any:
    """Merge two shards, then a third one to the right of them or to the left."""
    merged = [rank.value for rank in valid(trial.world(pair, acts.merged))]
    last = trial.subject.filled(rest)
    ranks = [merged[0], last] if first else [last, merged[0]]
    ended = trial.among(ranks)
    return valid(ended)[0].value


def valid(ended: Sequence[Ended]) -> Sequence[Ended]:
    """Return how ranks ended, if with a value."""
    for rank in ended:
        if rank.kind != "value":
            raise NotJudged(f"the run ends in {rank.text}")
    return ended


def parts(trial: Trial, number: int) -> Shards:
    """Deal all batches to exactly so many ranks, each with some; batches are cut if they are too
    few.
    """
    pooled = trial.pooled
    if len(pooled) < number:
        pooled = tuple(piece for batch in pooled for piece in pieces(batch, number))
    if len(pooled) < number:
        raise NotJudged(f"there are not enough samples for {number} ranks")
    return deal(pooled, [i * number // len(pooled) for i in range(len(pooled))], number)


def pieces(batch: Batch, number: int) -> list[Batch]:
    """Cut a batch into at most so many parts, none empty."""
    rows = count(batch)
    if not rows or rows < 2:
        return [batch]
    number = min(number, rows)
    return [take(batch, range(i * rows // number, (i + 1) * rows // number)) for i in range(number)]


@judges(laws.RANK_ORDER)
def rank_order(trial: Trial) -> Broken | None:
    """Turn the ranks around, and one on."""
    shards = dense(trial)
    if len(shards) < 2:
        raise NotJudged("only one rank has samples")
    expected = values(trial, shards)[0]
    for other in (shards[::-1], (*shards[1:], shards[0])):
        note = " in the other order of ranks"
        if broken := compare(expected, values(trial, other)[:1], valued(trial), other, note):
            return broken
    return None


@judges(laws.SAMPLE_ORDER)
def sample_order(trial: Trial) -> Broken | None:
    """Shuffle all samples, with the same batch sizes."""
    shards = dense(trial)
    try:
        whole = join(trial.pooled)
    except InputError as error:
        raise NotJudged(str(error)) from error
    rows, sizes = count(whole), [[count(batch) for batch in shard] for shard in shards]
    if not rows:
        raise NotJudged("the batches' arguments have no axis of samples in common")
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(rows)).tolist()
    other, at = [], 0
    for shard in sizes:
        dealt = []
        for size in shard:
            assert size is not None
            dealt.append(take(whole, order[at : at + size]))
            at += size
        other.append(tuple(dealt))
    expected = values(trial, shards)[0]
    note = " in the other order of samples"
    return compare(expected, values(trial, tuple(other))[:1], valued(trial), tuple(other), note)


@judges(laws.BATCH_SPLIT)
def batch_split(trial: Trial) -> Broken | None:
    """Cut every batch in two."""
    shards = dense(trial)
    halves = tuple(
        tuple(piece for batch in shard for piece in pieces(batch, 2)) for shard in shards
    )
    if list(map(len, halves)) == list(map(len, shards)):
        raise NotJudged("no batch has two samples")
    expected = values(trial, shards)[0]
    return compare(
        expected, values(trial, halves)[:1], valued(trial), halves, " with the batches in one piece"
    )


@judges(laws.WORLD_SIZE)
def world_size(trial: Trial) -> Broken | None:
    """Deal the same batches to 1, 2, 3, 5 and 8 ranks, in runs."""
    dense(trial)
    pooled = trial.pooled
    expected = values(trial, (pooled,))[0]
    for world in (2, 3, 5, 8):
        shards = deal(pooled, [i * world // len(pooled) for i in range(len(pooled))], world)
        if broken := compare(expected, values(trial, shards)[:1], BITWISE, shards, " on one rank"):
            return broken
    return None


@judges(laws.PADDING_REMOVED)
def padding_removed(trial: Trial) -> Broken | None:
    """Deal samples as torch's DistributedSampler does, some of them twice."""
    shards = dense(trial)
    if "indices" not in shards[0][0].kwargs:
        raise NotJudged("update takes no indices=, so it cannot tell a repeated sample")
    single = trial.single()
    if single.kind != "value":
        raise NotJudged(f"a single process raises {single.text}")
    for world in (2, 3):
        try:
            more = padded(trial.pooled, world)
        except (ValueError, InputError) as error:
            raise NotJudged(str(error)) from error
        if broken := compare(
            single.value, values(trial, more)[:1], valued(trial), more, " without the padding"
        ):
            return broken
    return None


@judges(laws.NO_HANG)
def no_hang(trial: Trial) -> Broken | None:
    """Run the shards as they are, and with ranks left empty."""
    full = dense(trial)
    pooled = trial.pooled
    others = (trial.shards, full, ((), *full), (*full, ()), ((), pooled), (pooled, (), ()))
    for shards in others:
        ended = trial.world(shards)
        for rank in ended:
            if rank.kind == "stuck":
                return Broken("every rank gets a value", told(ended), str(rank.error), shards)
    if all(rank.kind == "raised" for rank in trial.world(full)):
        raise NotJudged(f"every rank raises {trial.world(full)[0].text}")
    return None
