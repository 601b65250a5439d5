"""Find out why a rank waits: one state machine a wait, without threads, to run against any store.

Quiet at first, then asking: what the others have published, whether their processes live, where
those are who have not come. Who is asked answers from a thread of its own. A circle of waits is a
deadlock once each of its ranks has confirmed, after all had been seen waiting, that it waits in
that very call still: it did so the whole time between.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from distmetrics.comm.verdict import Departure, Verdict
from distmetrics.errors import ranks_in
from distmetrics.guard.decision import View, find_verdict, suspects, where_all_are
from distmetrics.guard.process_info import process_state
from distmetrics.guard.rank_status import Answer, Identity, RankStatus, Wait
from distmetrics.guard.store import ALL_ASK, FIRST_ASK, GuardStore
from distmetrics.guard.tombstones import Departures

FIRST_LOOK = 0.15  # seconds of waiting before anything is published: most waits are over by then
_ASK_AFTER = 0.3
_ASK_AGAIN = 0.4  # seconds between two questions of one of the ranks that wait
_LOOK, _SLOWEST = 0.1, 0.5  # seconds between two looks: at first, and of who finds out for itself
_ASKED_AT_ONCE = 64  # ranks
_OWN_WORD = 1.0  # seconds in which the wait of a rank's other group must end after it has left
_SPREAD = 1e-4  # seconds a rank by which a large world spreads what it publishes
_PATIENCE = 5e-4  # seconds a rank between two looks of who leaves the finding out to others
_TAKE_OVER = 20.0  # seconds after the deadline in which those who find out must have spoken
_HEARD = 1.0  # seconds in which others read a verdict, besides those between two looks
_FIRST_WORD = 5.0  # seconds before the log says whom a rank waits for; twice as long to the next
_log = logging.getLogger("distmetrics.guard")


def first_look(me: Identity) -> float:
    """Return after how many seconds of waiting a rank publishes that it waits."""
    return FIRST_LOOK + (me.rank * _SPREAD if me.world_size > ALL_ASK else 0.0)


@dataclass
class Diagnosis:
    """The finding out of one wait.

    Attributes:
        verdict: why the wait must end, once that is known.
        begun: when the wait began, by the clock of :meth:`step`.
        due: when whoever steps shall do so again.
    """

    me: Identity
    wait: Wait
    timeout: float
    store: GuardStore
    departures: Departures
    begun: float
    verdict: Verdict | None = None
    due: float = 0.0
    state_of: Callable[[int, str], str] = process_state
    _published: bool = False
    _asks: bool = True
    _first: bool = False
    _questions: dict[int, int] = field(default_factory=dict)
    # Since when each fact holds without a break: its kind, and the rank.
    _since: dict[tuple[str, int], float] = field(default_factory=dict)
    # For each rank of a circle, the serial number of its wait, and the question that confirms it.
    _suspects: dict[int, int] = field(default_factory=dict)
    _confirming: dict[int, int] = field(default_factory=dict)
    _spoken: float = 0.0
    _ended: float = 0.0
    _asked: float = -1.0

    def step(self, now: float) -> float:
        """Look once; return after how many seconds to look again."""
        if not self._published:
            self._come()
        if (published := self.store.verdict(self.wait.group)) is not None:
            return self._end(published, now)
        waited = now - self.begun
        if not self._asks and waited < self.timeout + _TAKE_OVER:
            return self._slowest
        view = self._view(now)
        if (verdict := find_verdict(view)) is not None:
            return self._end(self.store.decide(self.wait.group, verdict), now)
        self._log_whom_it_waits_for(view)
        self._ask(view, now)
        return _LOOK if waited < 1.5 else min(_SLOWEST, waited / 10)

    def is_heard(self, now: float) -> bool:
        """True once all who wait in the group have read the verdict, or have had the time to."""
        if now >= self._ended + _HEARD + self._slowest:
            return True
        waits = [status.wait for status in self.store.statuses().values()]
        waiting = sum(wait is not None and wait.group == self.wait.group for wait in waits)
        return self.store.count(f"heard/{self.wait.group}") >= waiting

    def _end(self, verdict: Verdict, now: float) -> float:
        self.verdict, self._ended = verdict, now
        self.store.count(f"heard/{self.wait.group}", 1)
        return 0.0

    @property
    def _slowest(self) -> float:
        """The longest time between two looks of a rank that waits, in seconds."""
        return max(_SLOWEST, self.me.world_size * _PATIENCE)

    def note_alone(self, alone: bool) -> None:
        """Publish anew whether this rank may go on in another thread, where that has changed."""
        if self.wait.alone != alone:
            self.wait = replace(self.wait, alone=alone)
            if self._published:
                self.store.publish(self.me.status(self.wait))

    def close(self) -> None:
        """Say that this rank waits no more."""
        if self._published:
            self.store.publish(self.me.status(None))
            if self._first:
                self.store.forget(self.wait.place)

    def _come(self) -> None:
        self.store.publish(self.me.status(self.wait))
        self._published = True
        if self.me.world_size > ALL_ASK:
            nth = self.store.count(self.wait.place, 1)
            self._first = nth == 1
            self._asks = nth <= FIRST_ASK

    def _view(self, now: float) -> View:
        statuses = self.store.statuses()
        answers = self.store.answers(self._questions)
        departures = self.departures.published()
        facts = {("left", departure.rank) for departure in departures}
        facts |= {(state, rank) for rank, state in self._process_states(statuses).items()}
        self._since = {fact: self._since.get(fact, now) for fact in facts}
        seconds: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for (kind, rank), since in self._since.items():
            seconds[kind][rank] = now - since
        return View(
            self.me.rank,
            self.wait,
            now - self.begun,
            self.timeout,
            statuses,
            self._left(departures, seconds["left"]),
            seconds,
            dict.fromkeys(self._questions) | answers,
            self._confirmed(statuses, answers),
        )

    def _left(
        self, departures: Sequence[Departure], seconds: Mapping[int, float]
    ) -> dict[int, Departure]:
        """Return the departures of ranks that have left without making this call."""
        left: dict[int, Departure] = {}
        gone = {rank for kind, rank in self._since if kind == "gone"}
        for departure in departures:
            calls = departure.calls_of(self.wait.group)
            if calls is None:  # it may have made this call; if so, the wait ends in a moment
                never_comes = seconds[departure.rank] >= _OWN_WORD
            else:
                # One that was interrupted in this very call has counted it, and is gone.
                has_failed = departure.failed and departure.rank in gone
                never_comes = calls < self.wait.number or has_failed
            if never_comes:
                left.setdefault(departure.rank, departure)
        return left

    def _process_states(self, statuses: Mapping[int, RankStatus]) -> dict[int, str]:
        """Return the states of the members' processes that are on this machine."""
        states = {}
        for rank in ranks_in(self.wait.members):
            status = statuses.get(rank)
            if status is not None and status.machine == self.me.machine != "":
                states[rank] = self.state_of(status.pid, status.born)
        return states

    def _confirmed(
        self, statuses: Mapping[int, RankStatus], answers: Mapping[int, Answer]
    ) -> set[int]:
        """Return the suspects that have answered, since all were seen, that they wait as before."""
        confirmed = set()
        for rank, serial in self._suspects.items():
            status, answer = statuses.get(rank), answers.get(rank)
            if status is None or status.wait is None or status.wait.serial != serial:
                continue
            if answer is None or answer.question < self._confirming[rank]:
                continue
            if answer.waits == serial:
                confirmed.add(rank)
        return confirmed

    def _ask(self, view: View, now: float) -> None:
        """Ask suspects at once, and from time to time those who have not come."""
        circle = [rank for rank in suspects(view) if rank != self.me.rank]
        serials = {rank: view.waits[rank].serial for rank in circle}
        if serials != self._suspects:
            self._suspects = serials
            self._confirming = {rank: self._put(rank) for rank in circle}
        pause = _ASK_AGAIN if self._speaks(view) else min(5.0, max(_SLOWEST, view.waited / 4))
        if view.waited < _ASK_AFTER or now < self._asked + pause:
            return
        self._asked = now
        elsewhere = [rank for rank in view.missing if rank not in view.waits]
        for rank in elsewhere[:_ASKED_AT_ONCE]:
            self._put(rank)

    def _put(self, rank: int) -> int:
        number = self._questions[rank] = self.store.ask(rank)
        return number

    def _speaks(self, view: View) -> bool:
        """True on one of the ranks that wait: it tells the user, and asks more often."""
        if self.me.world_size > ALL_ASK:
            return self._first
        return self.me.rank == min({*ranks_in(self.wait.members)} - {*view.missing})

    def _log_whom_it_waits_for(self, view: View) -> None:
        """Say in the log whom this rank waits for: one rank of those who wait, now and then."""
        if view.waited < max(_FIRST_WORD, 2 * self._spoken):
            return
        self._spoken = view.waited
        if self._speaks(view):
            text = "rank %d waits since %.0f s in %s: %s"
            _log.warning(text, self.me.rank, view.waited, self.wait.text, where_all_are(view))
