"""What a rank that waits knows of the others, and the verdict that follows, or nothing yet. Pure.

A verdict is only given where the wait can never be met, or has lasted as long as the user allows.
Ranks that are just slow are named in a line of the log and never blamed before that.
"""

import functools
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from itertools import chain

from distmetrics.comm.verdict import SAME_ORDER, Departure, Verdict, deadlock, departed
from distmetrics.errors import (
    DivergedError,
    MismatchError,
    PeerLostError,
    by_line,
    ranks_do,
    ranks_in,
    said_of,
    who,
)
from distmetrics.guard.rank_status import Answer, RankStatus, Wait

LOST_FOR = 0.3  # seconds that whoever watches a process has to say how it ended
STOPPED_FOR = 3.0  # seconds that a process may be stopped by a signal
STILL_FOR = 0.75  # seconds that a rank stands in a collective of torch's own that can't be met
_PROCESS, _PROCESSES = ("process", "is", "it"), ("processes", "are", "them")
_SPELT_OUT = 8  # different lines of ranks in one text


@dataclass(frozen=True)
class View:
    """What one rank that waits knows of the others. Ranks are those of the job.

    Attributes:
        me: this rank.
        wait: what it waits in.
        waited: for how many seconds.
        timeout: how many it may, for ranks that are alive and busy elsewhere.
        statuses: what each rank has published; nothing for one without a communicator yet.
        left: ranks that said, or of which was said, that they left.
        seconds: for how long a state of a rank is known: by rank, for each of "gone" and "stopped"
            (its process on this machine).
        answers: the latest answer of each rank that was asked where it is, or None.
        confirmed: ranks that have answered, since ``statuses`` was read, that they still wait in
            what it says.
    """

    me: int
    wait: Wait
    waited: float
    timeout: float
    statuses: Mapping[int, RankStatus]
    left: Mapping[int, Departure]
    seconds: Mapping[str, Mapping[int, float]]
    answers: Mapping[int, Answer | None]
    confirmed: Set[int]

    @functools.cached_property
    def waits(self) -> dict[int, Wait]:
        """What ranks wait in, as far as is known."""
        waits = {rank: status.wait for rank, status in self.statuses.items() if status.wait}
        return waits | {self.me: self.wait}

    @functools.cached_property
    def missing(self) -> list[int]:
        """The members of the group that have not come to this call."""
        members = ranks_in(self.wait.members)
        came = {rank for rank, wait in self.waits.items() if _has_come(wait, self.wait)}
        return [rank for rank in members if rank not in came]


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
    wait = view.waits.get(rank)
    if wait is None or not wait.alone:
        return
    for other in ranks_in(wait.members):
        theirs = view.waits.get(other)
        if other != rank and theirs is not None and not _has_come(theirs, wait):
            yield other


def find_verdict(view: View) -> Verdict | None:
    """Return why this wait can't be met, or has lasted too long; None while it may be met."""
    return next(chain(_never_met(view), _lasts_too_long(view)), None)


def _never_met(view: View) -> Iterator[Verdict]:
    """Yield why this wait can't be met, the surest reason first."""
    members = ranks_in(view.wait.members)
    if left := {rank: view.left[rank] for rank in members if rank in view.left}:
        yield departed(left, _lines(view))
    if gone := _missing_in(view, "gone", LOST_FOR):
        processes, are, it = _PROCESS if len(gone) == 1 else _PROCESSES
        yield Verdict(
            PeerLostError,
            f"the {processes} of {who(gone)} {are} gone, and others wait for {it}",
            gone,
            _lines(view),
            "killed, by the system for want of memory, say, or ended by os._exit.",
            f"look for the kill in the log of the machine of {who(gone)} (dmesg), and at the last "
            "words there.",
        )
    here = {r: wait for r, wait in view.waits.items() if wait.place == view.wait.place}
    if odd := [rank for rank in members if rank in here and here[rank].kind != view.wait.kind]:
        likely = "a collective under a condition, or in a loop, that not all ranks share."
        what = "ranks disagree on a collective"
        yield Verdict(MismatchError, what, tuple(odd), _lines(view), likely, SAME_ORDER)
    yield from _out_of_step(view, here)
    circle = suspects(view)
    if circle and view.confirmed >= {*circle} - {view.me}:
        groups = sorted({view.waits[rank].group for rank in circle})
        what = f"{who(circle)} wait for each other in different calls"
        yield replace(deadlock(what, circle, _lines(view)), groups=tuple(groups))


def _out_of_step(view: View, here: Mapping[int, Wait]) -> Iterator[Verdict]:
    """Yield that ranks have issued others of torch's own; ``here``: those in the same call."""
    mine = view.wait
    if uneven := [r for r, w in here.items() if mine.counts_exactly and w.issued != mine.issued]:
        what = "ranks came to a collective after different numbers of torch.distributed's own"
        likely = "a collective that only some ranks reach."
        yield Verdict(DivergedError, what, tuple(uneven), _lines(view), likely, SAME_ORDER)
    if elsewhere := [rank for rank in view.missing if _is_in_torchs_own(view, rank)]:
        yield Verdict(
            DivergedError,
            f"{ranks_do(elsewhere, 'waits', 'wait')} in a collective of torch.distributed, and "
            "this rank in another",
            tuple(elsewhere),
            _lines(view),
            "a collective that only some ranks reach, or in another order.",
            f"{SAME_ORDER[:-1]}; distmetrics.guard.watch() finds the first that differs.",
        )


def _is_in_torchs_own(view: View, rank: int) -> bool:
    """True if a rank has issued a collective of torch's own in the place of the call ``wait``.

    The collectives of a group pair up in the order in which each rank issues them. A rank that has
    issued more than this one had before its call, and has not made that call, can't meet it. Gloo
    counts sends and receives as well, of which ranks may have different numbers. So there the rank
    must also have stood still for a while in code of torch's that waits for others.
    """
    wait, answer = view.wait, view.answers.get(rank)
    if rank in view.waits or answer is None or answer.waits:
        return False  # it is in a call of ours
    if answer.calls.get(wait.group, 0) >= wait.number:
        return False
    if not wait.counts_exactly and answer.still < STILL_FOR:
        return False
    return wait.issued is not None and answer.issued.get(wait.group, 0) > wait.issued


def _lasts_too_long(view: View) -> Iterator[Verdict]:
    """Yield why this wait has lasted too long, though it may be met."""
    if stopped := _missing_in(view, "stopped", STOPPED_FOR):
        yield Verdict(
            PeerLostError,
            f"{ranks_do(stopped, 'is', 'are')} stopped by a signal (SIGSTOP), and others wait for "
            f"{'it' if len(stopped) == 1 else 'them'}",
            stopped,
            _lines(view),
            "somebody, or the scheduler, has suspended the process.",
            "let it go on (SIGCONT) and start the job again.",
        )
    if view.waited >= view.timeout:
        late, within = tuple(view.missing), f"within {view.timeout:g} s"
        it_is = "they are" if len(late) > 1 else "it is"
        do = f"see where {it_is}, or allow more time: DISTMETRICS_TIMEOUT=SECONDS."
        if late:
            what = f"{who(late)} did not come to a collective {within}"
            likely = f"{it_is} busy with work that the others do not have, or stuck."
            yield Verdict(DivergedError, what, late, _lines(view), likely, do)
        what = f"all ranks came to a collective, and it did not end {within}"
        likely = "the network between the ranks is cut or very slow."
        yield Verdict(PeerLostError, what, late, _lines(view), likely, do)


def _missing_in(view: View, state: str, least: float) -> tuple[int, ...]:
    """Return the missing ranks that have been in some state for at least so many seconds."""
    seconds = view.seconds[state]
    return tuple(rank for rank in view.missing if seconds.get(rank, -1.0) >= least)


def where_all_are(view: View) -> str:
    """Return on one line where those are who have not come."""
    lines = _few({rank: _line(view, rank) for rank in view.missing})
    parts = [f"{who(ranks)} {said_of(ranks, line)}" for line, ranks in by_line(lines).items()]
    return "; ".join(parts) or "all ranks are in it"


def _lines(view: View) -> dict[int, str]:
    """Return what each member does."""
    return _few({rank: _line(view, rank) for rank in ranks_in(view.wait.members)})


def _few(lines: Mapping[int, str]) -> dict[int, str]:
    """Keep some of many different lines, and replace the others."""
    kept = [*dict.fromkeys(lines.values())][:_SPELT_OUT]
    return {rank: line if line in kept else "somewhere else again" for rank, line in lines.items()}


def _line(view: View, rank: int) -> str:
    """Return what is known of a rank, the surest first."""
    if rank in view.left:
        return view.left[rank].why
    if rank in view.seconds["gone"]:
        return "its process is gone"
    if (seconds := view.seconds["stopped"].get(rank)) is not None:
        return f"is stopped, since {seconds:.1f} s"
    if rank in view.waits:
        return f"waits in {view.waits[rank].text}"
    if answer := view.answers.get(rank):
        return answer.where
    if rank not in view.statuses:
        return "has not made a call of distmetrics yet"
    return "does not answer" if rank in view.answers else "has not been asked yet"
