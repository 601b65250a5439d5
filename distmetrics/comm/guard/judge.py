"""What it means that a rank waits: a verdict, or nothing yet. Pure.

A verdict is only found where the wait can never be met, or has lasted as long as the user allows.
Ranks that are just slow are named in a line of the log and never blamed before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from distmetrics.comm.board import Departure
from distmetrics.comm.guard.slips import Answer, Slip, Waiting, ranks_in
from distmetrics.errors import (
    DistmetricsError,
    DivergedError,
    MismatchError,
    PeerLostError,
    compose,
    who,
)

STOPPED_FOR = 3.0  # seconds that a process may be stopped by a signal
_SPELT_OUT = 8  # different places in one text
FOREIGN_FOR = 5.0  # seconds that a rank may take to come out of a collective of torch's own
_BROKEN = "Every later call on this group raises at once."
_SAME_ORDER = "make every rank call the same collectives, in the same order."
_KINDS: dict[str, type[DistmetricsError]] = {
    kind.code: kind for kind in (MismatchError, DivergedError, PeerLostError)
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a wait ends: the same on every rank of the group.

    Attributes:
        code: of the error: "mismatch", "diverged" or "peer-lost".
        text: of the error.
        peers: the ranks that it is about.
        groups: other groups than that of the wait, in which it ends waits as well.
    """

    code: str
    text: str
    peers: tuple[int, ...]
    groups: tuple[str, ...] = ()

    def kind(self) -> type[DistmetricsError]:
        """Return the class of the error."""
        return _KINDS[self.code]


@dataclass(frozen=True, slots=True)
class View:
    """What one rank that waits knows of the others. Ranks are those of the job.

    Attributes:
        me: this rank.
        waiting: what it waits in.
        waited: for how many seconds.
        timeout: how many it may, for ranks that are alive and busy elsewhere.
        slips: what each rank has published; nothing for one that has not made a communicator yet.
        left: ranks that said, or of which was said, that they left.
        lost: ranks whose process on this machine is gone.
        stopped: ranks whose process on this machine is stopped by a signal, and for how many
            seconds.
        asked: ranks that were asked where they are.
        answers: of those, the latest.
        confirmed: ranks that have answered, since ``slips`` was read, that they still wait in what
            it says.
        foreign: ranks that are in a collective of torch's own over ranks that include this one, and
            for how long.
    """

    me: int
    waiting: Waiting
    waited: float
    timeout: float
    slips: Mapping[int, Slip]
    left: Mapping[int, Departure] = field(default_factory=dict)
    lost: frozenset[int] = frozenset()
    stopped: Mapping[int, float] = field(default_factory=dict)
    asked: frozenset[int] = frozenset()
    answers: Mapping[int, Answer] = field(default_factory=dict)
    confirmed: frozenset[int] = frozenset()
    foreign: Mapping[int, float] = field(default_factory=dict)

    def waits(self, rank: int) -> Waiting | None:
        """Return what a rank waits in, as far as is known."""
        if rank == self.me:
            return self.waiting
        slip = self.slips.get(rank)
        return None if slip is None else slip.waiting


def missing(view: View) -> list[int]:
    """Return the members of the group that have not come to this call."""
    found = []
    for rank in ranks_in(view.waiting.members):
        other = view.waits(rank)
        if other is None or not _has_come(other, view.waiting):
            found.append(rank)
    return found


def _has_come(other: Waiting, waiting: Waiting) -> bool:
    """Whether a rank in ``other`` is in, or already past, the call ``waiting``."""
    return other.group == waiting.group and other.call >= waiting.call


def suspects(view: View) -> list[int]:
    """Return the ranks of a circle of waits that this rank depends on: a deadlock, if all of them
    are confirmed.
    """
    path: list[int] = []
    done: set[int] = set()

    def visit(rank: int) -> list[int]:
        if rank in path:
            return path[path.index(rank) :]
        if rank in done:
            return []
        path.append(rank)
        for other in _waited_for(view, rank):
            if found := visit(other):
                return found
        path.pop()
        done.add(rank)
        return []

    return visit(view.me)


def _waited_for(view: View, rank: int) -> Iterator[int]:
    """Yield those that ``rank`` waits for and that wait elsewhere themselves."""
    waiting = view.waits(rank)
    if waiting is None or not waiting.alone:
        return
    for other in ranks_in(waiting.members):
        theirs = view.waits(other)
        if other != rank and theirs is not None and not _has_come(theirs, waiting):
            yield other


def find_verdict(view: View) -> Verdict | None:
    """Return why this rank's wait can't be met, or has lasted too long; None while it may still be
    met.
    """
    for find in (_left, _lost, _unlike, _circle, _foreign, _stopped, _late):
        if (verdict := find(view)) is not None:
            return verdict
    return None


def _left(view: View) -> Verdict | None:
    members = {*ranks_in(view.waiting.members)}
    left = {rank: departure for rank, departure in view.left.items() if rank in members}
    return departed(left, _lines(view)) if left else None


def departed(
    left: Mapping[int, Departure], lines: Mapping[int, str], notes: Sequence[str] = (_BROKEN,)
) -> Verdict:
    """Say that ranks have left, and whether that was a failure."""
    failed = sorted(rank for rank, departure in left.items() if departure.failed)
    peers = failed or sorted(left)
    lines = {**lines, **{rank: departure.why for rank, departure in left.items()}}
    if failed:
        headline, do = (
            f"{who(peers)} failed and will never answer",
            f"mend the failure of {who(peers)} first.",
        )
    else:
        headline = f"{who(peers)} {'has' if len(peers) == 1 else 'have'} returned, and others still wait for it"
        do = _SAME_ORDER
    text = compose(headline, lines, notes=notes, do=do)
    return Verdict(PeerLostError.code if failed else DivergedError.code, text, tuple(peers))


def _lost(view: View) -> Verdict | None:
    lost = sorted(view.lost.intersection(missing(view)))
    if not lost:
        return None
    one = len(lost) == 1
    return _verdict(
        view,
        PeerLostError,
        f"the process{'' if one else 'es'} of {who(lost)} {'is' if one else 'are'} gone, and "
        "others wait for it",
        lost,
        "it was killed, by the system for want of memory, say, or it called os._exit.",
        f"look for the kill in the log of the machine of {who(lost)} (dmesg), and at its own "
        "last words.",
    )


def _unlike(view: View) -> Verdict | None:
    odd = [
        rank
        for rank in ranks_in(view.waiting.members)
        if (other := view.waits(rank)) is not None
        and other.place == view.waiting.place
        and other.kind != view.waiting.kind
    ]
    if not odd:
        return None
    likely = "a collective under a condition, or in a loop, that not all ranks share."
    return _verdict(view, MismatchError, "ranks disagree on a collective", odd, likely, _SAME_ORDER)


def _circle(view: View) -> Verdict | None:
    circle = suspects(view)
    if not circle or not view.confirmed.issuperset({*circle} - {view.me}):
        return None
    verdict = _verdict(
        view,
        DivergedError,
        f"deadlock: {who(circle)} wait for each other in different calls",
        circle,
        "collectives of overlapping groups in a different order on different ranks.",
        "make every rank of a group call the same collectives, in the same order.",
    )
    groups = {waiting.group for rank in circle if (waiting := view.waits(rank)) is not None}
    return replace(verdict, groups=tuple(sorted(groups)))


def _foreign(view: View) -> Verdict | None:
    late = set(missing(view))
    inside = sorted(
        rank for rank, seconds in view.foreign.items() if rank in late and seconds >= FOREIGN_FOR
    )
    if not inside:
        return None
    return _verdict(
        view,
        DivergedError,
        f"{who(inside)} waits in a collective of torch.distributed, and this rank in another",
        inside,
        "a collective that only some ranks reach, or in another order.",
        f"{_SAME_ORDER[:-1]}; distmetrics.guard.watch() finds the first that differs.",
    )


def _stopped(view: View) -> Verdict | None:
    late = set(missing(view))
    stopped = sorted(
        rank for rank, seconds in view.stopped.items() if rank in late and seconds >= STOPPED_FOR
    )
    if not stopped:
        return None
    return _verdict(
        view,
        PeerLostError,
        f"{who(stopped)} is stopped by a signal (SIGSTOP), and others wait for it",
        stopped,
        "somebody, or the scheduler, has suspended the process.",
        "let it go on (SIGCONT) and start the job again.",
    )


def _late(view: View) -> Verdict | None:
    if view.waited < view.timeout:
        return None
    late = missing(view)
    if late:
        headline = f"{who(late)} did not come to a collective within {view.timeout:g} s"
        likely = "it is busy with work that the others do not have, or stuck."
    else:
        headline = f"all ranks came to a collective, and it did not end within {view.timeout:g} s"
        likely = "the network between the ranks is cut or very slow."
    do = "see where it is, or allow more time: DISTMETRICS_TIMEOUT=SECONDS."
    return _verdict(view, DivergedError if late else PeerLostError, headline, late, likely, do)


def _verdict(
    view: View,
    kind: type[DistmetricsError],
    headline: str,
    peers: Sequence[int],
    likely: str,
    do: str,
) -> Verdict:
    return Verdict(
        kind.code,
        compose(headline, _lines(view), notes=[_BROKEN], likely=likely, do=do),
        tuple(peers),
    )


def where_all_are(view: View) -> str:
    """Say on one line where those are who have not come."""
    parts: dict[str, list[int]] = {}
    for rank, text in _few({rank: _line(view, rank) for rank in missing(view)}).items():
        parts.setdefault(text, []).append(rank)
    return (
        "; ".join(f"{who(ranks)} {text}" for text, ranks in parts.items()) or "all ranks are in it"
    )


def _lines(view: View) -> dict[int, str]:
    """Say of each member what it does."""
    return _few({rank: _line(view, rank) for rank in ranks_in(view.waiting.members)})


def _few(lines: Mapping[int, str]) -> dict[int, str]:
    """Spell out some of many different lines."""
    spelt = set([*dict.fromkeys(lines.values())][:_SPELT_OUT])
    return {rank: text if text in spelt else "somewhere else again" for rank, text in lines.items()}


def _line(view: View, rank: int) -> str:
    waiting, answer, stopped = view.waits(rank), view.answers.get(rank), view.stopped.get(rank)
    told: list[tuple[object, Callable[[], str]]] = [
        (rank in view.left, lambda: view.left[rank].why),
        (rank in view.lost, lambda: "its process is gone"),
        (stopped is not None, lambda: f"is stopped, since {stopped:.1f} s"),
        (waiting is not None, lambda: f"waits in {'' if waiting is None else waiting.text}"),
        (answer is not None, lambda: "" if answer is None else answer.where),
        (rank not in view.slips, lambda: "has not made a call of distmetrics yet"),
    ]
    otherwise = "does not answer" if rank in view.asked else "was not asked"
    return next((text() for applies, text in told if applies), otherwise)
