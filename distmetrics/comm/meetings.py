"""How ranks that are threads meet in a collective, and why a meeting fails.

An exception may strike a rank at any moment, also in here. So what a rank has joined is written in
one go, locks are held by no Python code of their own, and whoever waits looks again now and then.
"""

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from distmetrics.comm.base import Call
from distmetrics.errors import MismatchError
from distmetrics.liveness.call_record import CallRecord, Round
from distmetrics.liveness.departures import Departure, reason
from distmetrics.liveness.outcome import Outcome
from distmetrics.liveness.verdict import Verdict, deadlock, departed

_LOOK = 0.2  # seconds after which a rank that waits looks whether it need not


class Joined(NamedTuple):
    """What one rank brings to a meeting."""

    kind: tuple[Any, ...]
    sent: list[Tensor]
    call: Call


@dataclass(eq=False)
class _Meeting:
    """The n-th collective of one group of ranks: who has come, and how it ended.

    Attributes:
        members: the ranks of the group.
        place: how many they had before.
        joined: what they bring, by rank.
        wake: a lock for each rank that waits; it goes on once that is released.
        verdict: why the meeting failed.
        is_over: whether all have come, and their kinds were compared.
    """

    members: tuple[int, ...]
    place: int
    joined: dict[int, Joined] = field(default_factory=dict)
    wake: dict[int, Any] = field(default_factory=dict)
    verdict: Verdict | None = None
    is_over: bool = False

    def wake_all(self) -> None:
        """Let the ranks go on that wait."""
        while self.wake:
            self.wake.popitem()[1].release()


class Meetings:
    """All collectives of one run of a world.

    Attributes:
        records: what each rank has done in each group, by rank and members.
    """

    def __init__(self, world_size: int) -> None:
        self.records: defaultdict[tuple[int, tuple[int, ...]], CallRecord]
        self.records = defaultdict(CallRecord)
        self._world_size = world_size
        self._lock = threading.RLock()
        self._meetings: dict[tuple[tuple[int, ...], int], _Meeting] = {}
        self._counts: defaultdict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        self._waiting: dict[int, _Meeting] = {}
        self._gone: dict[int, Departure] = {}
        self._broken: Verdict | None = None

    def meet(self, rank: int, members: tuple[int, ...], mine: Joined) -> dict[int, Joined]:
        """Join this rank's next collective of ``members``; return what every member brings.

        An exception may end this anywhere, and what was joined is found again: see
        :class:`CallRecord`.
        """
        record = self.records[rank, members]
        if not record.making:
            record.finish()
        one = record.next_round()
        if one is None:
            one = self._join(record, rank, members, mine)
        meeting: _Meeting = one.works[0]
        try:
            self._wait_until_over(rank, meeting)
        finally:
            with self._lock:
                self._waiting.pop(rank, None)
        if meeting.verdict is not None:
            raise meeting.verdict.error(rank, mine.call.site)
        return meeting.joined

    def _join(self, record: CallRecord, rank: int, members: tuple[int, ...], mine: Joined) -> Round:
        with self._lock:
            if self._broken is not None:
                raise self._broken.error(rank, mine.call.site)
            key = rank, members
            place = self._counts[key]
            meeting = self._meetings.setdefault((members, place), _Meeting(members, place))
            one = record.begin_round()
            # No function is called in these three lines, so no interrupt strikes between them.
            meeting.joined[rank] = mine
            self._counts[key] = place + 1
            one.works = [meeting]
        return one

    def _wait_until_over(self, rank: int, meeting: _Meeting) -> None:
        while True:
            with self._lock:
                if self._is_over(meeting):
                    return
                wake = threading.Lock()
                wake.acquire()
                meeting.wake[rank] = wake
                self._waiting[rank] = meeting
                self._end_vain_waits()
            # Looks again now and then: whoever came last may have been interrupted before it could
            # wake this rank.
            wake.acquire(timeout=_LOOK)

    def _is_over(self, meeting: _Meeting) -> bool:
        """True once all members have come, or never will; called with the lock held."""
        if len(meeting.joined) < len(meeting.members):
            meeting.verdict = meeting.verdict or self._broken
            return meeting.verdict is not None
        if not meeting.is_over:
            kinds = [joined.kind for joined in meeting.joined.values()]
            if any(kind != kinds[0] for kind in kinds):
                meeting.verdict = _disagreement(meeting)
            for member in meeting.members:
                if self._waiting.get(member) is meeting:
                    del self._waiting[member]
            self._meetings.pop((meeting.members, meeting.place), None)
            meeting.is_over = True
            meeting.wake_all()
        return True

    def leave(self, outcome: Outcome) -> None:
        """Note that a rank has ended, and end the waits that need it."""
        with self._lock:
            failed = outcome.error is not None
            self._gone[outcome.rank] = Departure(outcome.rank, reason(outcome.error), failed)
            self._end_vain_waits()

    def _end_vain_waits(self) -> None:
        """End every wait that can't be met any more; called with the lock held at each change."""
        lines: dict[int, str] = {}
        needed: set[int] = set()
        for rank, meeting in self._waiting.items():
            lines[rank] = f"waits in {meeting.joined[rank].call}"
            needed.update(meeting.members)
        lines |= {rank: gone.why for rank, gone in self._gone.items()}
        left = {rank: gone for rank, gone in self._gone.items() if rank in needed}
        if left:
            self.end(departed(left, lines))
        elif self._waiting and len(lines) == self._world_size:
            what = "every rank waits, and no wait can be met"
            self.end(deadlock(what, sorted(self._waiting), lines))

    def end(self, verdict: Verdict) -> None:
        """End every wait, and refuse later calls.

        Also in groups that could go on: a rank that they wait for may call next, and hear it then.
        """
        with self._lock:
            self._broken = verdict
            waiting = [*self._waiting.values()]
            self._waiting.clear()
            for meeting in waiting:
                meeting.verdict = verdict
                meeting.wake_all()


def _disagreement(meeting: _Meeting) -> Verdict:
    return Verdict(
        MismatchError,
        "ranks disagree on a collective",
        tuple(sorted(meeting.joined)),
        {rank: str(joined.call) for rank, joined in meeting.joined.items()},
        likely="a condition, a loop length or a shape that differs between ranks.",
        do="make every rank call the same collectives, in the same order, with equal shapes and "
        "dtypes.",
        notes=("No data was moved.",),
    )
