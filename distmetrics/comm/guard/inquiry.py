"""Find out why a rank waits: one state machine a wait, without threads, so that it can be run
against any store.

Quiet at first, then asking: what the others have published, whether their processes live, where
those are who have not come. Who is asked answers from a thread of its own. A circle of waits is a
deadlock once each of its ranks has confirmed, after all had been seen waiting, that it waits in
that very call still: it did so the whole time between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from distmetrics.comm.board import Board, Departure
from distmetrics.comm.guard.judge import (
    Verdict,
    View,
    find_verdict,
    missing,
    suspects,
    where_all_are,
)
from distmetrics.comm.guard.notices import ALL_ASK, Notices, asks
from distmetrics.comm.guard.places import process_state
from distmetrics.comm.guard.slips import Answer, Slip, Waiting, ranks_in
from distmetrics.errors import who

FIRST_LOOK = 0.15  # seconds of waiting before anything is published: most waits are over by then
_ASK_AFTER = 0.3
_LOOK, _SLOWEST = 0.1, 0.5  # seconds between two looks: at first, and of who finds out for itself
_ASKED_AT_ONCE = 64  # ranks
_LOST_FOR = 0.3  # seconds that whoever watches a process has to say how it ended
_OWN_WORD = 1.0  # seconds in which a departure from another group's calls must be followed by the wait's end
_SPREAD = 1e-4  # seconds a rank by which a large world spreads what it publishes
_PATIENCE = 5e-4  # seconds a rank between two looks of who leaves the finding out to others
_TAKE_OVER = 20.0  # seconds after the deadline in which those who find out must have spoken
_FIRST_WORD = (
    5.0  # seconds before the log says whom a rank waits for; twice as long to the next line
)
_log = logging.getLogger("distmetrics.guard")


@dataclass(frozen=True, slots=True)
class Self:
    """Who this rank is: in the job, and as a process."""

    rank: int
    world_size: int
    machine: str
    pid: int
    born: str
    world: str  # name of the group of all ranks

    def slip(self, waiting: Waiting | None) -> Slip:
        """Return what this rank publishes while it waits, or while it does not."""
        return Slip(self.machine, self.pid, self.born, waiting)

    @property
    def first_look(self) -> float:
        """Seconds after which this rank publishes that it waits."""
        return FIRST_LOOK + (self.rank * _SPREAD if self.world_size > ALL_ASK else 0.0)


@dataclass
class Inquiry:
    """The finding out of one wait.

    Attributes:
        verdict: why the wait must end, once that is known.
        begun: when the wait began, by the clock of :meth:`step`.
    """

    me: Self
    waiting: Waiting
    timeout: float
    notices: Notices
    board: Board
    begun: float
    verdict: Verdict | None = None
    state_of: Callable[[int, str], str] = process_state
    _published: bool = False
    _asks: bool = True
    _first: bool = False
    _questions: dict[int, int] = field(default_factory=dict)
    _lost: dict[int, float] = field(default_factory=dict)
    _stopped: dict[int, float] = field(default_factory=dict)
    _foreign: dict[int, tuple[str, float]] = field(default_factory=dict)
    _left: dict[int, float] = field(default_factory=dict)
    _suspects: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # wait and question that confirm a circle
    _spoken: float = 0.0
    _asked: float = -1.0

    def step(self, now: float) -> float:
        """Look once; return after how many seconds to look again."""
        if not self._published:
            self._come()
        if (known := self.notices.verdict(self.waiting.group)) is not None:
            self.verdict = known
            return 0.0
        waited = now - self.begun
        if not self._asks and waited < self.timeout + _TAKE_OVER:
            return max(_SLOWEST, self.me.world_size * _PATIENCE)
        view = self._view(now)
        if (found := find_verdict(view)) is not None:
            self.verdict = self.notices.decide(self.waiting.group, found)
            return 0.0
        self._speak(view, waited)
        self._ask(view, now)
        return _LOOK if waited < 1.5 else min(_SLOWEST, waited / 10)

    def close(self) -> None:
        """Say that this rank waits no more."""
        if self._published:
            self.notices.publish(self.me.slip(None))
            if self._first:
                self.notices.forget(self.waiting.place)

    def _come(self) -> None:
        self.notices.publish(self.me.slip(self.waiting))
        self._published = True
        if self.me.world_size > ALL_ASK:
            nth = self.notices.come_to(self.waiting.place)
            self._first = nth == 1
            self._asks = asks(nth, self.me.world_size)

    def _view(self, now: float) -> View:
        slips = self.notices.slips()
        answers = self.notices.answers(self._questions)
        lost, stopped = self._processes(slips, now)
        return View(
            self.me.rank,
            self.waiting,
            now - self.begun,
            self.timeout,
            slips,
            left=self._departures(now),
            lost=lost,
            stopped=stopped,
            asked=frozenset(self._questions),
            answers=answers,
            confirmed=self._confirmed(slips, answers),
            foreign=self._in_foreign(answers, now),
        )

    def _departures(self, now: float) -> dict[int, Departure]:
        """Return who has left without making this call."""
        found: dict[int, Departure] = {}
        for departure in self.board.departures():
            calls = departure.calls_of(self.waiting.group, self.me.world)
            since = self._left.setdefault(departure.rank, now)
            if (calls is None and now - since >= _OWN_WORD) or (
                calls is not None and calls < self.waiting.call
            ):
                found.setdefault(departure.rank, departure)
        return found

    def _processes(
        self, slips: Mapping[int, Slip], now: float
    ) -> tuple[frozenset[int], dict[int, float]]:
        """See to the processes of this machine: which are gone, which are stopped, and for how
        long.
        """
        for rank in ranks_in(self.waiting.members):
            slip = slips.get(rank)
            near = slip is not None and slip.machine == self.me.machine != ""
            state = self.state_of(slip.pid, slip.born) if slip is not None and near else "alive"
            for known, name in ((self._lost, "gone"), (self._stopped, "stopped")):
                if state == name:
                    known.setdefault(rank, now)
                else:
                    known.pop(rank, None)
        lost = frozenset(rank for rank, since in self._lost.items() if now - since >= _LOST_FOR)
        return lost, {rank: now - since for rank, since in self._stopped.items()}

    def _confirmed(
        self, slips: Mapping[int, Slip], answers: Mapping[int, Answer]
    ) -> frozenset[int]:
        """Return the suspects that have answered, since they were seen together, that they wait as
        they did.
        """
        found = set()
        for rank, (number, question) in self._suspects.items():
            slip, answer = slips.get(rank), answers.get(rank)
            waiting = None if slip is None else slip.waiting
            waits_still = waiting is not None and waiting.number == number
            if (
                waits_still
                and answer is not None
                and answer.question >= question
                and answer.waits == number
            ):
                found.add(rank)
        return frozenset(found)

    def _in_foreign(self, answers: Mapping[int, Answer], now: float) -> dict[int, float]:
        """Return who has been in the same collective of torch's own, and for how long."""
        ours = {self.waiting.group, self.me.world}
        for rank, answer in answers.items():
            if not answer.foreign or answer.foreign not in ours or answer.waits:
                self._foreign.pop(rank, None)
            elif self._foreign.get(rank, ("", 0.0))[0] != answer.where:
                self._foreign[rank] = answer.where, now
        return {rank: now - since for rank, (_, since) in self._foreign.items()}

    def _ask(self, view: View, now: float) -> None:
        """Put the questions that are due: to suspects at once, to who has not come from time to
        time.
        """
        circle = [rank for rank in suspects(view) if rank != self.me.rank]
        waits = {
            rank: waiting.number for rank in circle if (waiting := view.waits(rank)) is not None
        }
        if {rank: number for rank, (number, _) in self._suspects.items()} != waits:
            self._suspects = {}
            for rank, number in waits.items():
                self._suspects[rank] = number, self._put(rank)
        if view.waited < _ASK_AFTER or now < self._asked + min(5.0, max(_SLOWEST, view.waited / 4)):
            return
        self._asked = now
        for rank in [rank for rank in missing(view) if view.waits(rank) is None][:_ASKED_AT_ONCE]:
            self._put(rank)

    def _put(self, rank: int) -> int:
        number = self._questions[rank] = self.notices.ask(rank)
        return number

    def _speak(self, view: View, waited: float) -> None:
        """Say in the log whom this rank waits for: one rank of those who wait, now and then."""
        if waited < max(_FIRST_WORD, 2 * self._spoken):
            return
        self._spoken = waited
        late = set(missing(view))
        if self.me.rank == min(rank for rank in ranks_in(self.waiting.members) if rank not in late):
            text = "%s waits since %.0f s in %s: %s"
            _log.warning(text, who([self.me.rank]), waited, self.waiting.text, where_all_are(view))
