"""Why a wait ends, and how a rank does: the same words for groups, threads and launches. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from distmetrics.call_site import raise_sites
from distmetrics.errors import (
    ConfigurationError,
    DistmetricsError,
    DivergedError,
    InputError,
    InputTypeError,
    LayoutError,
    MismatchError,
    PeerLostError,
    Site,
    StateError,
    by_line,
    in_short,
    ranks_do,
    who,
)
from distmetrics.message import Message

BROKEN = "Every later call on this group raises at once."
SAME_ORDER = "make every rank call the same collectives, in the same order."
KINDS: dict[str, type[DistmetricsError]] = {
    kind.code: kind
    for kind in (
        MismatchError,
        DivergedError,
        PeerLostError,
        LayoutError,
        StateError,
        InputError,
        InputTypeError,
        ConfigurationError,
    )
}


class Verdict(Message, frozen=True):
    """Why a wait, or a call of others, ends: the values of an error, the same on every rank."""

    kind: str  # code of the error's class
    what: str
    peers: tuple[int, ...] = ()
    per_rank: Mapping[int, str] = {}
    likely: str = ""
    do: str = ""
    notes: tuple[str, ...] = (BROKEN,)
    groups: tuple[str, ...] = ()  # others than that of the wait, whose waits end as well

    def error(self, rank: int, site: Site | None = None) -> DistmetricsError:
        """Return the error that ``rank`` raises for it; all ranks are the job's."""
        values = asdict(self)
        del values["groups"]
        error = KINDS.get(values.pop("kind"), DistmetricsError)(**values, rank=rank, site=site)
        error.is_of_job = True
        return error

    def __str__(self) -> str:
        return str(self.error(rank=0))


def departed(left: Mapping[int, Departure], lines: Mapping[int, str]) -> Verdict:
    """Return the verdict that ranks have left, which others need: those that failed, if any."""
    failed = sorted(rank for rank, departure in left.items() if departure.failed)
    peers = tuple(failed or sorted(left))
    per_rank = {**lines, **{rank: departure.why for rank, departure in left.items()}}
    if failed:
        what = f"{who(peers)} failed and will never answer"
        do = f"mend the failure of {who(peers)} first."
        return Verdict("peer-lost", what, peers, per_rank, do=do)
    it = "it" if len(peers) == 1 else "them"
    what = ranks_do(peers, f"has returned, and others still wait for {it}")
    return Verdict("diverged", what, peers, per_rank, do=SAME_ORDER)


def left_a_call(peers: Sequence[int], what: str, lines: Mapping[int, str]) -> Verdict:
    """Return the verdict that ranks have left a call that others made."""
    return Verdict(
        "diverged",
        what,
        tuple(peers),
        lines,
        likely="an exception of a signal's handler (Ctrl-C, a timer) that was caught.",
        do="let it end the job; or bring all ranks to the same place by other means, and let each "
        "make a communicator of a new group there: "
        "GroupCommunicator(torch.distributed.new_group()).",
        notes=("Every later call on this communicator raises at once.",),
    )


def deadlock(what: str, peers: Sequence[int], lines: Mapping[int, str]) -> Verdict:
    """Return the verdict that ranks wait for each other in groups that overlap."""
    likely = "collectives of overlapping groups in a different order on different ranks."
    return Verdict("diverged", f"deadlock: {what}", tuple(peers), lines, likely, SAME_ORDER)


def silent_store(rank: int, doing: str, seconds: float, error: str) -> Verdict:
    """Return the verdict that nobody can be asked, since the job's store does not answer."""
    return Verdict(
        "peer-lost",
        f"the job's key-value store does not answer, since {seconds:.0f} s, and this rank waits",
        per_rank={rank: doing},
        likely="its host (rank 0, where no launcher has it) is stopped or gone, or the network is "
        "cut.",
        do="see to that process first; torchrun hosts the store outside the ranks.",
        notes=(f"The store says: {error}",) if error else (),
    )


class Departure(Message, frozen=True):
    """That a rank of the job left, and why."""

    rank: int
    why: str
    failed: bool
    # How many calls of each process group it has made; nothing where somebody else says it left.
    calls: Mapping[str, int] = {}


def reason(error: BaseException | None) -> str:
    """Return in a few words why a rank leaves: what it raised, or that it has returned."""
    if error is None:
        return "has returned"
    site = next(iter(raise_sites(error)), "")
    return f"raised {in_short(error)}  {site}".rstrip()


def what_ended() -> BaseException | None:
    """Return the error that has ended the script, once one has."""
    return getattr(sys, "last_value", None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank returned, or the exception that ended it.

    Attributes:
        rank: the rank.
        value: what it returned; None if it raised.
        error: what it raised, or None.

    >>> first, second = outcomes(2, lambda comm: 1 // comm.rank)
    >>> first.error, second.value
    (ZeroDivisionError('integer division or modulo by zero'), 1)
    """

    rank: int
    value: Any = None
    error: BaseException | None = None


def settle(outcomes: Sequence[Outcome]) -> list[Any]:
    """Return every rank's value, or raise the error that caused the others, with notes of those."""
    errors = {each.rank: each.error for each in outcomes if each.error is not None}
    if not errors:
        return [each.value for each in outcomes]
    root = min(errors, key=lambda rank: blame(errors[rank]))
    error = errors.pop(root)
    error.add_note(f"raised on rank {root}")
    others = {rank: in_short(other) for rank, other in errors.items()}
    for text, ranks in by_line(others).items():
        error.add_note(f"{who(ranks)} raised {text}")
    raise error


def blame(error: BaseException | None) -> int:
    """Return 0 for an error that may be the cause, 1 or 2 for one of a rank that was let down."""
    if isinstance(error, PeerLostError):
        return 2
    return int(isinstance(error, DivergedError))
