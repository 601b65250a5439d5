"""What the values that ranks log amount to.

Nothing here talks to another rank. Each rank gets the records of all of them, combines them in rank
order in float64, and so gets the same bits, or the same error.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from distmetrics.errors import MismatchError, who
from distmetrics.train.accumulators import Accumulator, Key, Kind, RankLog

# With one batch a rank, a condition on the data looks like one on the rank half of the time.
_BATCHES_TO_BE_SURE = 2
# A name, the ranks that log it in every batch, and those that never do.
_OneSided = tuple[Key, list[int], list[int]]


class Logged(NamedTuple):
    """What all ranks' logs amount to.

    ``values`` by key, of which the ``local`` ones are this rank's own; a value that each step has
    too is here twice, as ``name_epoch`` as well, whose keys are ``aliases``. ``kinds``: how each
    name was logged; ``batches``: the number of batches of each loader, over all ranks.
    """

    values: dict[Key, Tensor]
    local: set[Key]
    aliases: set[Key]
    kinds: dict[Key, Kind]
    batches: Mapping[int, int]


def combine(ranks: Sequence[RankLog], rank: int, *, strict: bool) -> Logged:
    """Return the value of each name that is no metric object's, as ``rank`` sees it.

    Raises:
        MismatchError: ranks log a name in different ways, or only some of them do.
    """
    kinds = agreed_kinds(ranks, rank)
    check_names(ranks, kinds, rank, strict=strict)
    batches = sum((Counter(each.batches) for each in ranks), Counter[int]())
    logged = Logged({}, set(), set(), kinds, batches)
    counted = {"all ranks": ranks, "this rank": [ranks[rank]], "rank 0": ranks[:1]}
    for key, kind in kinds.items():
        senders = [each for each in counted[kind.scope] if key in each.values]
        if kind.metric or not senders:
            continue
        whole = Accumulator(kind)
        for each in senders:
            part = each.values[key]
            whole.merge(part.total, part.weight)
        aliases = [key.of("epoch")] if kind.forked else []
        logged.aliases.update(aliases)
        keys = [key, *aliases]
        value = torch.tensor(whole.value, dtype=torch.float64, device="cpu")
        logged.values.update(dict.fromkeys(keys, value))
        if kind.scope == "this rank" and len(ranks) > 1:
            logged.local.update(keys)
    return logged


def agreed_kinds(ranks: Sequence[RankLog], rank: int) -> dict[Key, Kind]:
    """Return how each name was logged, the same on all ranks that log it.

    Raises:
        MismatchError: two ranks log a name in different ways.
    """
    kinds: dict[Key, Kind] = {}
    for values, _ in ranks:
        for key, part in values.items():
            if kinds.setdefault(key, part.kind) == part.kind:
                continue
            raise MismatchError(
                f"ranks log {key.label!r} in different ways",
                per_rank={
                    index: f"as {each.values[key].kind}" if key in each.values else "not at all"
                    for index, each in enumerate(ranks)
                },
                likely="a condition on the rank or on the data around self.log.",
                do="log a name with the same options on every rank.",
                rank=rank,
                peers=range(len(ranks)),
            )
    return kinds


def check_names(
    ranks: Sequence[RankLog], kinds: Mapping[Key, Kind], rank: int, *, strict: bool
) -> None:
    """Refuse, or warn of, a name that some ranks log in every batch and others in none.

    Its value is of the former's samples alone. That is right where the condition is on the data, as
    it would be in one process, and wrong where it is on the rank. With ``strict`` False, or one
    batch on a rank, which may well be the data, rank 0 only warns.

    Raises:
        MismatchError: there is such a name.
    """
    certain: list[_OneSided] = []
    doubtful: list[_OneSided] = []
    for key, kind in kinds.items():
        if kind.metric or kind.scope != "all ranks":
            continue  # a metric object's value is over all ranks, whoever logs it
        batches = {rank: each.batches.get(key.loader, 0) for rank, each in enumerate(ranks)}
        always = []
        never = []
        for index, count in batches.items():
            part = ranks[index].values.get(key)
            if count and part is None:
                never.append(index)
            elif count and part is not None and part.steps >= count:
                always.append(index)
        if never and always:
            fewest = min(batches[index] for index in never + always)
            is_certain = strict and fewest >= _BATCHES_TO_BE_SURE
            (certain if is_certain else doubtful).append((key, always, never))
    if certain:
        raise _one_sided_error(certain, ranks, rank)
    for key, always, never in doubtful if rank == 0 else ():
        warnings.warn(
            f"{key.label!r} was logged in every batch of {who(always)} and in no batch "
            f"of {who(never)}: samples of the latter are not in its value. If self.log is "
            "under a condition on the rank, log on every rank, or with rank_zero_only=True what "
            "is rank 0's alone.",
            stacklevel=2,
        )


def _one_sided_error(
    one_sided: Sequence[_OneSided], ranks: Sequence[RankLog], rank: int
) -> MismatchError:
    (first, *_), *others = one_sided
    named = ", ".join(f"{key.label!r} by {who(always)}" for key, always, _ in others[:5])
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    return MismatchError(
        f"only some ranks log {first.label!r}",
        per_rank={index: _share(first, each) for index, each in enumerate(ranks)},
        notes=[f"Likewise: {named}{more}."] if others else [],
        likely="a condition on the rank around self.log, or the rank in the name: the value is "
        "of a part of the data.",
        do="log the name on every rank; with rank_zero_only=True what is rank 0's alone. If the "
        "condition is on the data, Trainer(require_same_names=False) only warns.",
        rank=rank,
        peers=range(len(ranks)),
    )


def _share(key: Key, log: RankLog) -> str:
    """Return in how many of its batches a rank logs a name, and where."""
    count = log.batches.get(key.loader, 0)
    part = log.values.get(key)
    if count == 0:
        return "had no batch"
    if part is None:
        return f"in none of its {count} batches"
    share = "each" if part.steps >= count else "some"
    return f"in {share} of its {count} batches" + (f", first at {part.site}" if part.site else "")
