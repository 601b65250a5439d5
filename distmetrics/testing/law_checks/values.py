"""Checks of the laws about values and collectives: other shards of the same data, other runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch

from distmetrics.errors import InputError
from distmetrics.testing import scenarios
from distmetrics.testing.batches import Batch, Shards, count, cut, join, map_batches, take
from distmetrics.testing.equality import BITWISE
from distmetrics.testing.shards import in_runs, in_turn, padded
from distmetrics.testing.trial import LawBroken, NotJudged, Trial, compare


def single_is_sharded(trial: Trial) -> None:
    """Compare with one process, which may raise as long as the ranks do too."""
    shards = trial.dense
    single, ranks = trial.single(), trial.settled(shards)
    if single.kind == "value":
        trial.keeps_value(single.value, shards)
    elif all(rank.kind == "raised" for rank in ranks):
        raise NotJudged(f"a single process raises {single.text}")
    else:
        raise LawBroken(single, ranks, "a value where a single process raises", shards)


def ranks_agree(trial: Trial) -> None:
    """Compare all ranks with rank 0, bit by bit."""
    got = trial.values(trial.shards)
    compare(got[0], got, BITWISE, trial.shards, " of rank 0")


def empty_rank(trial: Trial) -> None:
    """Add a rank without data in the first, in the last and in every other place."""
    shards = trial.dense
    expected = trial.values(shards)[0]
    first: Shards = ((), *shards)
    last = (*shards, ())
    for more in (first, last, (*first, (), ())):
        trial.keeps_value(expected, more, " without the empty rank")


def empty_batch(trial: Trial) -> None:
    """Add an update with no samples in front and at the end."""
    shards = trial.dense
    if not count(shards[0][0]):
        raise NotJudged("the batches' arguments have no axis of samples in common")
    nothing = take(shards[0][0], [])
    alone = trial.single([nothing, *trial.pooled])
    if alone.kind == "raised":
        raise NotJudged(f"an update with no samples is refused: {alone.text}")
    more = ((nothing, *shards[0]), *shards[1:])
    if shards[1:]:
        more = (*more[:-1], (*more[-1], nothing))
    trial.same_value(shards, [more], " without the empty batches")


def associative(trial: Trial) -> None:
    """Merge three parts from the left and from the right."""
    first, second, third = shards = trial.parts(3)
    merged_left = trial.values((first, second), scenarios.merged)[0]
    merged_right = trial.values((second, third), scenarios.merged)[0]
    last_alone, first_alone = trial.subject.filled(third), trial.subject.filled(first)
    left = trial.values(((merged_left,), (last_alone,)), scenarios.prefilled)
    right = trial.values(((first_alone,), (merged_right,)), scenarios.prefilled)
    note = " when the first two are merged first"
    compare(left[0], right[:1], trial.loosely, shards, note)


def rank_order(trial: Trial) -> None:
    """Turn the ranks around, and one on."""
    shards = trial.dense
    if len(shards) < 2:
        raise NotJudged("only one rank has samples")
    others = (shards[::-1], (*shards[1:], shards[0]))
    trial.same_value(shards, others, " in the other order of ranks")


def sample_order(trial: Trial) -> None:
    """Shuffle all samples, with the same batch sizes."""
    shards = trial.dense
    try:
        whole = join(trial.pooled)
    except InputError as error:
        raise NotJudged(str(error)) from error
    rows = count(whole)
    if not rows:
        raise NotJudged("the batches' arguments have no axis of samples in common")
    generator = torch.Generator().manual_seed(rows)
    order = iter(torch.randperm(rows, generator=generator).tolist())

    def drawn(batch: Batch) -> Batch:
        return take(whole, list(islice(order, count(batch))))

    shuffled = map_batches(drawn, shards)
    trial.same_value(shards, [shuffled], " in the other order of samples")


def batch_split(trial: Trial) -> None:
    """Cut every batch in two."""
    shards = trial.dense
    halves = tuple(_halves(shard) for shard in shards)
    if list(map(len, halves)) == list(map(len, shards)):
        raise NotJudged("no batch has two samples")
    trial.same_value(shards, [halves], " with the batches in one piece")


def _halves(shard: Sequence[Batch]) -> tuple[Batch, ...]:
    return tuple(half for batch in shard for half in cut(batch, 2))


def world_size(trial: Trial) -> None:
    """Deal the same batches to 1, 2, 3, 5 and 8 ranks, in runs."""
    others = [in_runs(trial.pooled, world) for world in (2, 3, 5, 8)]
    trial.same_value((trial.pooled,), others, " on one rank", BITWISE)


def padding_removed(trial: Trial) -> None:
    """Deal samples as torch's DistributedSampler does, some of them twice."""
    try:
        others = [padded(trial.pooled, world) for world in (2, 3)]
    except InputError as error:
        raise NotJudged(f"update cannot tell a repeated sample: {error}") from error
    trial.same_value((trial.pooled,), others, " without the padding")


def same_sequence(trial: Trial) -> None:
    """Compare the collectives of ranks, and those of other dealings of the same batches."""
    shards, batches = trial.dense, trial.pooled
    cut = len(batches) - len(shards) + 1
    lopsided = (batches[:cut], *in_turn(batches[cut:], len(shards) - 1))
    trial.values(shards)
    first = trial.world(shards)[0].collectives
    turned = in_turn(batches, len(shards))
    for dealt in (shards, shards[::-1], turned, lopsided):
        trial.values(dealt)
        for rank in trial.world(dealt):
            if rank.collectives != first:
                got = [_listed(rank.collectives)]
                raise LawBroken(_listed(first), got, "other data, other calls", dealt)


def _listed(collectives: tuple[str, ...]) -> str:
    return f"{len(collectives)} collectives: {', '.join(collectives[:6])}"


def no_hang(trial: Trial) -> None:
    """Run the shards as they are, and with ranks left empty."""
    shards, batches = trial.dense, trial.pooled
    others: list[Shards] = [
        trial.shards,
        shards,
        ((), *shards),
        (*shards, ()),
        ((), batches),
        (batches, (), ()),
    ]
    for dealt in others:
        ranks = trial.world(dealt)
        for rank in ranks:
            if rank.kind == "stuck":
                raise LawBroken("every rank gets a value", ranks, str(rank.error), dealt)
    ranks = trial.world(shards)
    if all(rank.kind == "raised" for rank in ranks):
        raise NotJudged(f"every rank raises {ranks[0].text}")
