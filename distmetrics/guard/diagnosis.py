"""Find out why a rank waits: one state machine a wait, without threads, to run against any store.

It is quiet at first. Then it reads what the others have published, looks whether their processes
live, and asks the ranks that have not come where they are. A thread of each rank answers. Ranks
that seem to hold each other up are asked anew: once each has confirmed, after all had been seen
waiting, that it still waits there, it did so the whole time between.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from distmetrics.comm.verdict import Verdict
from distmetrics.errors import compose, ranks_in
from distmetrics.guard.decision import JobSnapshot
from distmetrics.guard.process_info import ProcessId, process_state
from distmetrics.guard.store import GuardStore, Identity, Wait

# In worlds of up to ALL_ASK ranks every rank that waits finds out for itself why; in larger ones
# the first three that come to a call do.
ALL_ASK, FIRST_ASK = 64, 3
FIRST_LOOK = 0.15  # seconds of waiting before anything is published: most waits are over by then
_ASK_AFTER = 0.3
_ASK_AGAIN = 0.4  # seconds between two questions of one of the ranks that wait
_LOOK, _SLOWEST = 0.1, 0.5  # seconds between two looks: at first, and of who finds out for itself
_ASKED_AT_ONCE = 64  # ranks
_PATIENCE = 5e-4  # seconds a rank between two looks of who leaves the finding out to others
_TAKE_OVER = 20.0  # seconds after the deadline in which those who find out must have spoken
_FIRST_WORD = 5.0  # seconds before the log says whom a rank waits for; twice as long to the next
_log = logging.getLogger("distmetrics.guard")


@dataclass
class Diagnosis:
    """The finding out of one wait, which began at ``begun`` and is looked at again when ``due``."""

    me: Identity
    wait: Wait
    timeout: float
    store: GuardStore
    begun: float
    due: float = 0.0
    state_of: Callable[[ProcessId], str] = process_state
    _published: bool = False
    _asks: bool = True
    _first: bool = False
    _asked: set[int] = field(default_factory=set)
    # Since when each fact holds without a break: its kind, and the rank.
    _since: dict[tuple[str, int], float] = field(default_factory=dict)
    # For each suspect, with the serial number of its wait, the question that confirms it.
    _questions: dict[tuple[int, int], int] = field(default_factory=dict)
    _spoken: float = 0.0
    _asked_at: float = -1.0

    def step(self, now: float) -> Verdict | None:
        """Look once; return why the wait ends, if it is known."""
        if not self._published:
            self._come()
        if (verdict := self.store.verdict(self.wait.group)) is not None:
            return verdict
        waited = now - self.begun
        if not self._asks and waited < self.timeout + _TAKE_OVER:
            self.due = now + max(_SLOWEST, self.me.world_size * _PATIENCE)
            return None
        job = self._snapshot(now)
        if (verdict := job.verdict()) is not None:
            return self.store.decide(self.wait.group, verdict)
        self._log_whom_it_waits_for(job)
        self._ask(job, now)
        self.due = now + min(_SLOWEST, max(_LOOK, waited / 10))
        return None

    def close(self) -> None:
        """Say that this rank waits no more."""
        if self._published:
            self.store.publish(None)
            if self._first:
                self.store.forget(self.wait.place)

    def _come(self) -> None:
        self.store.publish(self.wait)
        self._published = True
        if self.me.world_size > ALL_ASK:
            nth = self.store.count(self.wait.place, 1)
            self._first, self._asks = nth == 1, nth <= FIRST_ASK

    def _snapshot(self, now: float) -> JobSnapshot:
        statuses, answers = self.store.statuses(), self.store.answers(self._asked)
        known = [rank for rank in ranks_in(self.wait.members) if rank in statuses]
        facts = [(self.state_of(statuses[rank].process), rank) for rank in known]
        self._since = {fact: self._since.get(fact, now) for fact in facts}
        return JobSnapshot(
            self.me.rank,
            self.me.world_size,
            self.wait,
            now - self.begun,
            self.timeout,
            statuses,
            self.store.published(),
            {fact: now - since for fact, since in self._since.items()},
            answers,
            self._questions,
        )

    def _ask(self, job: JobSnapshot, now: float) -> None:
        """Ask suspects at once, and from time to time, on one rank, those who are elsewhere."""
        if job.suspects != self._questions.keys():
            self._questions = {suspect: self.store.ask(suspect[0]) for suspect in job.suspects}
        elsewhere = job.whom_to_ask[:_ASKED_AT_ONCE]
        # Alone what these answer is read: each answer is a call of the store, on every rank.
        self._asked = {*elsewhere, *(rank for rank, _ in job.suspects)}
        if job.waited >= _ASK_AFTER and now >= self._asked_at + _ASK_AGAIN and self._speaks(job):
            self._asked_at = now
            for rank in elsewhere:
                self.store.ask(rank)

    def _speaks(self, job: JobSnapshot) -> bool:
        """True on one of the ranks that wait, which tells the user and asks more often."""
        if self.me.world_size > ALL_ASK:
            return self._first
        return self.me.rank == min({*job.members} - {*job.missing})

    def _log_whom_it_waits_for(self, job: JobSnapshot) -> None:
        if job.waited < max(_FIRST_WORD, 2 * self._spoken):
            return
        self._spoken = job.waited
        if self._speaks(job):
            what = f"rank {self.me.rank} waits since {job.waited:.0f} s in {self.wait.text}"
            _log.warning("%s", compose(what, {rank: job.line(rank) for rank in job.missing}))
