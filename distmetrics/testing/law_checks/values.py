"""Checks of the laws about values: other shards of the same data, other runs, other numbers."""

import math
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from distmetrics.errors import InputError
from distmetrics.testing import scenarios
from distmetrics.testing.batches import (
    Batch,
    Shards,
    changed_floats,
    count,
    cut,
    is_floating,
    join,
    map_batches,
    take,
)
from distmetrics.testing.equality import BITWISE, Equality
from distmetrics.testing.shards import in_runs, in_turn, padded
from distmetrics.testing.trial import LawBroken, NotJudged, Trial, compare
from distmetrics.tree import map_leaves


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
    one_on = (*shards[1:], shards[0])
    others = (shards[::-1], one_on)
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


_HALF_PRECISION = Equality("relative 0.02, absolute 0.02", 0.02, 0.02, types=False)
_SHIFTED = Equality("relative 0.001", 1e-3, 1e-3, types=False)


def _with_floats(shards: Shards, change: Callable[[Tensor], Tensor]) -> Shards:
    """Change the floating tensors of all batches, of which there must be some."""
    batches = chain.from_iterable(shards)
    if not any(is_floating(x) for batch in batches for x in batch.arguments.values()):
        raise NotJudged("no argument is a tensor of floats")
    return map_batches(lambda batch: changed_floats(batch, change), shards)


def low_precision(trial: Trial) -> None:
    """Compare bfloat16 input with the same numbers in float32."""
    low = _with_floats(trial.dense, lambda x: x.to(torch.bfloat16))
    same = _with_floats(low, lambda x: x.to(torch.float32))
    alone = trial.single(low[0])
    if alone.kind == "raised":
        raise NotJudged(f"bfloat16 input is refused: {alone.text}")
    trial.same_value(same, [low], " in float32", _HALF_PRECISION)


def shift(trial: Trial) -> None:
    """Add 1000 to every floating number."""
    more = _with_floats(trial.dense, lambda x: x + 1000)
    trial.same_value(trial.dense, [more], " before 1000 was added to all", _SHIFTED)


def nan_everywhere(trial: Trial) -> None:
    """Put NaN, and infinity, into the first number of one rank's data."""
    *others, last = trial.dense
    for bad in (torch.nan, torch.inf):

        def spoil(x: Tensor, bad: float = bad) -> Tensor:
            x = x.clone()
            x.reshape(-1)[:1] = bad
            return x

        spoiled = _with_floats((last[:1],), spoil)
        shards = (*others, (*spoiled[0], *last[1:]))
        single = trial.single(list(chain.from_iterable(shards)))
        if single.kind == "raised":
            raise NotJudged(f"{bad} is refused: {single.text}")
        expected, *got = map_leaves(_not_finite, [single.value, *trial.values(shards)])
        compare(expected, got, BITWISE, shards, f" with {bad} in the data")


def _not_finite(leaf: Any) -> Any:
    """Return where numbers are not finite."""
    if isinstance(leaf, Tensor):
        return (~leaf.isfinite()).tolist()
    return isinstance(leaf, float) and not math.isfinite(leaf)


def large_counts(trial: Trial) -> None:
    """Double the states until counts pass 2²⁴, and add one batch."""
    shards = trial.parts(2)
    states = trial.values(shards, scenarios.doubled)
    if not states[0]:
        raise NotJudged("it has states that are no sums, which cannot be doubled that often")
    (big, total), (added, _) = states
    for name in added:
        if _is_count(big[name]) and _is_count(added[name]):
            expected = big[name].double() + added[name].double()
            note = f", the state {name} ({big[name].dtype}) after a batch was added"
            compare(expected, [total[name].double()], BITWISE, shards, note)


def _is_count(x: Any) -> bool:
    """True if all numbers of a tensor are whole, so that they count something."""
    if not isinstance(x, Tensor) or not x.numel() or x.is_complex():
        return False
    numbers = x.double()
    return torch.equal(numbers, numbers.round())
