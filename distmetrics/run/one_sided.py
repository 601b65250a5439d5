"""Names that some ranks log in every batch and others in none: their values are of a part."""

import warnings
from collections.abc import Sequence
from typing import Any

from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.communicator import Communicator, one_call
from distmetrics.errors import MismatchError, who
from distmetrics.log.merge import refusal
from distmetrics.message import reading
from distmetrics.run.combine import Logged
from distmetrics.run.entries import Entries, Key

# With one batch a rank, a condition on the data looks like one on the rank half of the time.
_BATCHES_TO_BE_SURE = 2


# Of a rank: in "each", "some" or "no" batch; how many batches there were; the same in words.
_Share = tuple[str, int, str]
# A name, each rank's share of it, who logs it in every batch, and who never does.
_OneSided = tuple[Key, Sequence[_Share], list[int], list[int]]


def check_names(whole: Logged, mine: Entries, comm: Communicator, *, strict: bool) -> None:
    """Refuse, or warn of, a name that some ranks log in every batch and others in none.

    Its value is of the former's samples alone. That is right where the condition is on the data, as
    it would be in one process, and wrong where it is on the rank. With ``strict`` False, or one
    batch on a rank, which may well be the data, rank 0 only warns. Ranks tell one another of their
    batches only where some that had any have not logged a name.

    Raises:
        MismatchError: there is such a name.
    """
    keys = sorted(key for key in whole.kinds if _is_lacking(key, whole))
    found = _one_sided(keys, mine, comm) if keys else []
    sure = []
    for each in found if strict else ():
        _, shares, always, never = each
        if min(shares[rank][1] for rank in always + never) >= _BATCHES_TO_BE_SURE:
            sure.append(each)
    if sure:
        raise _error(sure, comm)
    for key, _, always, never in found if comm.rank == 0 else ():
        warnings.warn(
            f"{key.label!r} was logged in every batch of {who(always)} and in no batch "
            f"of {who(never)}: samples of the latter are not in its value. If self.log is "
            "under a condition on the rank, log on every rank, or with rank_zero_only=True what "
            "is rank 0's alone.",
            stacklevel=2,
        )


def _is_lacking(key: Key, whole: Logged) -> bool:
    """True if a rank that had batches has not logged a value of all ranks."""
    kind = whole.kinds[key]
    if kind.metric or kind.scope != "all ranks":
        return False  # a metric object's value is over all ranks, whoever logs it
    busy = whole.ranks.get(Key("", key.loader), [])
    return not set(busy).issubset(whole.ranks[key])


def _one_sided(keys: Sequence[Key], mine: Entries, comm: Communicator) -> list[_OneSided]:
    """Return the names that some ranks log always and others never; every rank must call it."""
    ranks = _gathered([_share(key, mine) for key in keys], comm=comm)
    with reading("its shares of batches"):
        columns = [*zip(*ranks, strict=True)]
    found: list[_OneSided] = []
    for key, shares in zip(keys, columns, strict=True):
        always = [rank for rank, (share, _, _) in enumerate(shares) if share == "each"]
        never = [rank for rank, (share, _, _) in enumerate(shares) if share == "no"]
        if always and never:
            found.append((key, shares, always, never))
    return found


def _share(key: Key, mine: Entries) -> _Share:
    """Return in how many of its batches this rank has logged a name."""
    count = mine.batches[key.loader]
    entry = mine.get(key)
    if count == 0:
        return "", 0, "had no batch"
    if entry is None:
        return "no", count, f"in none of its {count} batches"
    share = "each" if entry.steps >= count else "some"
    first = f", first at {entry.slot.site}" if entry.slot.site else ""
    return share, count, f"in {share} of its {count} batches{first}"


@one_call
def _gathered(own: list[_Share], *, comm: Communicator) -> list[list[_Share]]:
    return gather_objects(own, _read, "shares of batches", op="self.log", comm=comm)


def _read(told: Any) -> list[_Share]:
    """Return what a peer has told; raise anything for what is none."""
    return [(str(share), int(count), str(text)) for share, count, text in told]


def _error(found: Sequence[_OneSided], comm: Communicator) -> MismatchError:
    (first, shares, *_), *others = found
    named = ", ".join(f"{key.label!r} by {who(always)}" for key, _, always, _ in others[:5])
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    return refusal(
        comm,
        f"only some ranks log {first.label!r}",
        [text for _, _, text in shares],
        note=f"Likewise: {named}{more}." if others else "",
        likely="a condition on the rank around self.log, or the rank in the name: the value is "
        "of a part of the data.",
        do="log the name on every rank; with rank_zero_only=True what is rank 0's alone. If the "
        "condition is on the data, Trainer(require_same_names=False) only warns.",
    )
