"""What it means that a rank waits: a verdict, or nothing yet. Pure.

A verdict is only given where the wait can never be met, or has lasted as long as the user allows.
Ranks that are just slow are named in a line of the log and never blamed before that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from distmetrics.errors import (
    DistmetricsError,
    DivergedError,
    MismatchError,
    PeerLostError,
    Site,
    compose,
    rank_ranges,
    who,
)
from distmetrics.liveness.departures import Departure
from distmetrics.liveness.rank_status import Answer, RankStatus, Wait, ranks_in

LOST_FOR = 0.3  # seconds that whoever watches a process has to say how it ended
STOPPED_FOR = 3.0  # seconds that a process may be stopped by a signal
FOREIGN_FOR = 5.0  # seconds that a rank may take to come out of a collective of torch's own
_SPELT_OUT = 8  # different lines of ranks in one text
BROKEN = "Every later call on this group raises at once."
SAME_ORDER = "make every rank call the same collectives, in the same order."
_KINDS = {kind.code: kind for kind in (MismatchError, DivergedError, PeerLostError)}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a wait ends: the same on every rank of the group; the values of an error.

    Attributes:
        code: of the error: "mismatch", "diverged" or "peer-lost".
        what: what is wrong.
        peers: the ranks that it is about.
        per_rank: what each rank did.
        likely: the likely cause.
        do: what to do.
        notes: what became of the group.
        groups: other groups than that of the wait, in which it ends waits as well.
    """

    code: str
    what: str
    peers: tuple[int, ...] = ()
    per_rank: Mapping[int, str] = field(default_factory=dict)
    likely: str = ""
    do: str = ""
    notes: tuple[str, ...] = (BROKEN,)
    groups: tuple[str, ...] = ()

    def error(self, rank: int, site: Site | None = None) -> DistmetricsError:
        """Return the error that ``rank`` raises for it."""
        return _KINDS[self.code](
            self.what,
            per_rank=self.per_rank,
            notes=self.notes,
            likely=self.likely,
            do=self.do,
            rank=rank,
            peers=self.peers,
            site=site,
        )

    def __str__(self) -> str:
        return compose(self.what, self.per_rank, notes=self.notes, likely=self.likely, do=self.do)

    def encode(self) -> str:
        """Write it for the store; ranks with the same line share it."""
        lines = [(rank_ranges(ranks), line) for line, ranks in _by_line(self.per_rank).items()]
        return json.dumps(
            [self.code, self.what, self.peers, lines, self.likely, self.do, self.notes]
        )

    @classmethod
    def decode(cls, text: str | bytes) -> Verdict:
        """Read what :meth:`encode` wrote, which leaves out the other groups."""
        code, what, peers, lines, likely, do, notes = json.loads(text)
        per_rank = {rank: line for ranks, line in lines for rank in ranks_in(ranks)}
        return cls(code, what, tuple(peers), per_rank, likely, do, tuple(notes))


def departed(left: Mapping[int, Departure], lines: Mapping[int, str]) -> Verdict:
    """Return the verdict that ranks have left: those that failed, if one did.

    Args:
        left: departures of ranks that are needed.
        lines: what the ranks do that need them.
    """
    failed = sorted(rank for rank, departure in left.items() if departure.failed)
    peers = tuple(failed or sorted(left))
    per_rank = {**lines, **{rank: departure.why for rank, departure in left.items()}}
    if failed:
        what = f"{who(peers)} failed and will never answer"
        do = f"mend the failure of {who(peers)} first."
        return Verdict(PeerLostError.code, what, peers, per_rank, do=do)
    have = "has" if len(peers) == 1 else "have"
    what = f"{who(peers)} {have} returned, and others still wait for it"
    return Verdict(DivergedError.code, what, peers, per_rank, do=SAME_ORDER)


def deadlock(what: str, peers: Sequence[int], lines: Mapping[int, str]) -> Verdict:
    """Return the verdict that ranks wait for each other in groups that overlap."""
    likely = "collectives of overlapping groups in a different order on different ranks."
    do = "make every rank of a group call the same collectives, in the same order."
    return Verdict(DivergedError.code, f"deadlock: {what}", tuple(peers), lines, likely, do)


@dataclass(frozen=True, slots=True)
class View:
    """What one rank that waits knows of the others. Ranks are those of the job.

    Attributes:
        me: this rank.
        wait: what it waits in.
        waited: for how many seconds.
        timeout: how many it may, for ranks that are alive and busy elsewhere.
        statuses: what each rank has published; nothing for one without a communicator yet.
        left: ranks that said, or of which was said, that they left.
        lost: ranks whose process on this machine is gone, and for how many seconds.
        stopped: ranks whose process on this machine is stopped by a signal, likewise.
        asked: ranks that were asked where they are.
        answers: of those, the latest.
        confirmed: ranks that have answered, since ``statuses`` was read, that they still wait in
            what it says.
        foreign: ranks that are in a collective of torch's own over ranks that include this one, and
            for how many seconds.
    """

    me: int
    wait: Wait
    waited: float
    timeout: float
    statuses: Mapping[int, RankStatus]
    left: Mapping[int, Departure] = field(default_factory=dict)
    lost: Mapping[int, float] = field(default_factory=dict)
    stopped: Mapping[int, float] = field(default_factory=dict)
    asked: frozenset[int] = frozenset()
    answers: Mapping[int, Answer] = field(default_factory=dict)
    confirmed: frozenset[int] = frozenset()
    foreign: Mapping[int, float] = field(default_factory=dict)

    def wait_of(self, rank: int) -> Wait | None:
        """Return what a rank waits in, as far as is known."""
        if rank == self.me:
            return self.wait
        status = self.statuses.get(rank)
        return None if status is None else status.wait


def missing(view: View) -> list[int]:
    """Return the members of the group that have not come to this call."""
    waits = {rank: view.wait_of(rank) for rank in ranks_in(view.wait.members)}
    return [rank for rank, wait in waits.items() if wait is None or not _has_come(wait, view.wait)]


def _has_come(other: Wait, wait: Wait) -> bool:
    """True if a rank in ``other`` is in the call ``wait``, or already past it."""
    return other.group == wait.group and other.number >= wait.number


def suspects(view: View) -> list[int]:
    """Return the ranks of a circle of waits that this rank depends on.

    It is a deadlock if each of them has confirmed that it still waits there.
    """
    path: list[int] = []
    visited: set[int] = set()

    def visit(rank: int) -> list[int]:
        if rank in path:
            return path[path.index(rank) :]
        if rank in visited:
            return []
        path.append(rank)
        for other in _waited_for(view, rank):
            if circle := visit(other):
                return circle
        path.pop()
        visited.add(rank)
        return []

    return visit(view.me)


def _waited_for(view: View, rank: int) -> Iterator[int]:
    """Yield those that ``rank`` waits for and that wait elsewhere themselves."""
    wait = view.wait_of(rank)
    if wait is None or not wait.alone:
        return
    for other in ranks_in(wait.members):
        theirs = view.wait_of(other)
        if other != rank and theirs is not None and not _has_come(theirs, wait):
            yield other


def find_verdict(view: View) -> Verdict | None:
    """Return why this wait can't be met, or has lasted too long; None while it may be met."""
    for find in (_left, _lost, _unlike, _circle, _foreign, _stopped, _late):
        if (verdict := find(view)) is not None:
            return verdict
    return None


def _left(view: View) -> Verdict | None:
    members = ranks_in(view.wait.members)
    left = {rank: view.left[rank] for rank in members if rank in view.left}
    return departed(left, _lines(view)) if left else None


def _lost(view: View) -> Verdict | None:
    lost = _missing_since(view, view.lost, LOST_FOR)
    if not lost:
        return None
    processes, are = ("process", "is") if len(lost) == 1 else ("processes", "are")
    return Verdict(
        PeerLostError.code,
        f"the {processes} of {who(lost)} {are} gone, and others wait for it",
        lost,
        _lines(view),
        "it was killed, by the system for want of memory, say, or it called os._exit.",
        f"look for the kill in the log of the machine of {who(lost)} (dmesg), and at its own "
        "last words.",
    )


def _unlike(view: View) -> Verdict | None:
    odd = []
    for rank in ranks_in(view.wait.members):
        other = view.wait_of(rank)
        if other and other.place == view.wait.place and other.kind != view.wait.kind:
            odd.append(rank)
    if not odd:
        return None
    likely = "a collective under a condition, or in a loop, that not all ranks share."
    what = "ranks disagree on a collective"
    return Verdict(MismatchError.code, what, tuple(odd), _lines(view), likely, SAME_ORDER)


def _circle(view: View) -> Verdict | None:
    circle = suspects(view)
    if not circle or not view.confirmed.issuperset({*circle} - {view.me}):
        return None
    what = f"{who(circle)} wait for each other in different calls"
    waits = [view.wait_of(rank) for rank in circle]
    groups = sorted({wait.group for wait in waits if wait is not None})
    return replace(deadlock(what, circle, _lines(view)), groups=tuple(groups))


def _foreign(view: View) -> Verdict | None:
    inside = _missing_since(view, view.foreign, FOREIGN_FOR)
    if not inside:
        return None
    return Verdict(
        DivergedError.code,
        f"{who(inside)} waits in a collective of torch.distributed, and this rank in another",
        inside,
        _lines(view),
        "a collective that only some ranks reach, or in another order.",
        f"{SAME_ORDER[:-1]}; distmetrics.guard.watch() finds the first that differs.",
    )


def _stopped(view: View) -> Verdict | None:
    stopped = _missing_since(view, view.stopped, STOPPED_FOR)
    if not stopped:
        return None
    return Verdict(
        PeerLostError.code,
        f"{who(stopped)} is stopped by a signal (SIGSTOP), and others wait for it",
        stopped,
        _lines(view),
        "somebody, or the scheduler, has suspended the process.",
        "let it go on (SIGCONT) and start the job again.",
    )


def _late(view: View) -> Verdict | None:
    if view.waited < view.timeout:
        return None
    late = tuple(missing(view))
    within = f"within {view.timeout:g} s"
    do = "see where it is, or allow more time: DISTMETRICS_TIMEOUT=SECONDS."
    if late:
        what = f"{who(late)} did not come to a collective {within}"
        likely = "it is busy with work that the others do not have, or stuck."
        return Verdict(DivergedError.code, what, late, _lines(view), likely, do)
    what = f"all ranks came to a collective, and it did not end {within}"
    likely = "the network between the ranks is cut or very slow."
    return Verdict(PeerLostError.code, what, late, _lines(view), likely, do)


def _missing_since(view: View, since: Mapping[int, float], least: float) -> tuple[int, ...]:
    """Return the missing ranks that have been in some state for at least so many seconds."""
    return tuple(rank for rank in missing(view) if since.get(rank, -1.0) >= least)


def where_all_are(view: View) -> str:
    """Return on one line where those are who have not come."""
    lines = _few({rank: _line(view, rank) for rank in missing(view)})
    parts = [f"{who(ranks)} {line}" for line, ranks in _by_line(lines).items()]
    return "; ".join(parts) or "all ranks are in it"


def _lines(view: View) -> dict[int, str]:
    """Return what each member does."""
    return _few({rank: _line(view, rank) for rank in ranks_in(view.wait.members)})


def _few(lines: Mapping[int, str]) -> dict[int, str]:
    """Keep some of many different lines, and replace the others."""
    kept = [*dict.fromkeys(lines.values())][:_SPELT_OUT]
    return {rank: line if line in kept else "somewhere else again" for rank, line in lines.items()}


def _by_line(lines: Mapping[int, str]) -> dict[str, list[int]]:
    ranks_of: dict[str, list[int]] = {}
    for rank, line in lines.items():
        ranks_of.setdefault(line, []).append(rank)
    return ranks_of


def _line(view: View, rank: int) -> str:
    """Return what is known of a rank, the surest first."""
    if rank in view.left:
        return view.left[rank].why
    if rank in view.lost:
        return "its process is gone"
    if rank in view.stopped:
        return f"is stopped, since {view.stopped[rank]:.1f} s"
    if (wait := view.wait_of(rank)) is not None:
        return f"waits in {wait.text}"
    if rank in view.answers:
        return view.answers[rank].where
    if rank not in view.statuses:
        return "has not made a call of distmetrics yet"
    return "does not answer" if rank in view.asked else "was not asked"
