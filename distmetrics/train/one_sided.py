"""Names that some ranks log in every batch and others in none: their values are of a part."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.base import Communicator
from distmetrics.comm.one_call import as_one_call
from distmetrics.errors import MismatchError, who
from distmetrics.train.combine import Logged
from distmetrics.train.entries import Entries, Key

# With one batch a rank, a condition on the data looks like one on the rank half of the time.
_BATCHES_TO_BE_SURE = 2


class _Share(NamedTuple):
    """How many batches a rank has had, how many have logged a name, and the line that did first."""

    batches: int
    steps: int | None  # None: the name is not known there
    site: str

    @classmethod
    def of(cls, key: Key, mine: Entries, batches: Mapping[int, int]) -> Self:
        """Return this rank's share."""
        count = batches.get(key.loader, 0)
        entry = mine.get(key)
        return cls(count, None, "") if entry is None else cls(count, entry.steps, entry.site)

    @classmethod
    def read(cls, batches: Any, steps: Any, site: Any) -> Self:
        """Return what a peer has told; raise anything for what is none."""
        return cls(int(batches), None if steps is None else int(steps), str(site))

    @property
    def is_never(self) -> bool:
        """True if there were batches, and none logged it."""
        return self.batches > 0 and self.steps is None

    @property
    def is_always(self) -> bool:
        """True if there were batches, and each logged it."""
        return self.steps is not None and self.steps >= self.batches > 0

    def __str__(self) -> str:
        if self.batches == 0:
            return "had no batch"
        if self.steps is None:
            return f"in none of its {self.batches} batches"
        share = "each" if self.is_always else "some"
        first = f", first at {self.site}" if self.site else ""
        return f"in {share} of its {self.batches} batches{first}"


class _OneSided(NamedTuple):
    """A name, each rank's share of it, the ranks that log it in every batch, those that never do.

    ``is_certain``: whether there were batches enough to tell.
    """

    key: Key
    shares: Sequence[_Share]
    always: list[int]
    never: list[int]
    is_certain: bool

    @classmethod
    def of(cls, key: Key, shares: Sequence[_Share]) -> Self:
        """Sort out who logs a name."""
        always = [rank for rank, share in enumerate(shares) if share.is_always]
        never = [rank for rank, share in enumerate(shares) if share.is_never]
        fewest = min((shares[rank].batches for rank in [*always, *never]), default=0)
        return cls(key, shares, always, never, fewest >= _BATCHES_TO_BE_SURE)


def check_names(
    whole: Logged,
    mine: Entries,
    batches: Mapping[int, int],
    comm: Communicator,
    *,
    strict: bool,
) -> None:
    """Refuse, or warn of, a name that some ranks log in every batch and others in none.

    Its value is of the former's samples alone. That is right where the condition is on the data, as
    it would be in one process, and wrong where it is on the rank. With ``strict`` False, or one
    batch on a rank, which may well be the data, rank 0 only warns. Ranks tell one another of their
    batches only where a name is missing on some.

    Raises:
        MismatchError: there is such a name.
    """
    keys = []
    for key, kind in whole.kinds.items():
        # A metric object's value is over all ranks, whoever logs it.
        if not kind.metric and kind.scope == "all ranks" and whole.lacking(key, comm):
            keys.append(key)
    if not keys:
        return
    keys.sort()
    own = [[*_Share.of(key, mine, batches)] for key in keys]
    columns = zip(*_gathered(own, comm=comm), strict=True)
    found = []
    for key, column in zip(keys, columns, strict=True):
        each = _OneSided.of(key, [_Share(*share) for share in column])
        if each.always and each.never:
            found.append(each)
    certain = [each for each in found if strict and each.is_certain]
    if certain:
        raise _error(certain, comm)
    for each in found if comm.rank == 0 else ():
        warnings.warn(
            f"{each.key.label!r} was logged in every batch of {who(each.always)} and in no batch "
            f"of {who(each.never)}: samples of the latter are not in its value. If self.log is "
            "under a condition on the rank, log on every rank, or with rank_zero_only=True what "
            "is rank 0's alone.",
            stacklevel=2,
        )


@as_one_call
def _gathered(own: list[list[Any]], *, comm: Communicator) -> list[list[list[Any]]]:
    """Return each rank's shares of the names, as data, which a layout can hand over."""

    def read(told: Any) -> list[list[Any]]:
        shares = [[*_Share.read(*share)] for share in told]
        if len(shares) != len(own):
            raise ValueError(f"{len(shares)} shares of {len(own)} names")
        return shares

    return gather_objects(own, read, comm, "shares of batches", op="self.log")


def _error(found: Sequence[_OneSided], comm: Communicator) -> MismatchError:
    first, *others = found
    named = ", ".join(f"{each.key.label!r} by {who(each.always)}" for each in others[:5])
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    return MismatchError(
        f"only some ranks log {first.key.label!r}",
        per_rank={rank: str(share) for rank, share in enumerate(first.shares)},
        notes=[f"Likewise: {named}{more}."] if others else [],
        likely="a condition on the rank around self.log, or the rank in the name: the value is "
        "of a part of the data.",
        do="log the name on every rank; with rank_zero_only=True what is rank 0's alone. If the "
        "condition is on the data, Trainer(require_same_names=False) only warns.",
        rank=comm.rank,
        peers=range(comm.world_size),
    )
