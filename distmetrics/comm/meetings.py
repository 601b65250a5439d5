"""How ranks that are threads meet in a collective, and why a meeting fails.

An exception may strike a rank at any moment, also in here. So what a rank has joined is written in
one go, locks are held by no Python code of their own, and whoever waits looks again now and then.
"""

import threading
from collections import Counter, defaultdict
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


class Group(NamedTuple):
    """Ranks that meet, in their own threads or in those of their background."""

    members: tuple[int, ...]
    in_background: bool = False


@dataclass(eq=False)
class _Meeting:
    """The n-th collective of one group of ranks: who has come, and how it ended.

    Attributes:
        group: whose.
        place: how many they had before.
        joined: what they bring, by rank.
        wake: a lock for each rank that waits; it goes on once that is released.
        verdict: why the meeting failed.
        is_over: whether all have come, and their kinds were compared.
    """

    group: Group
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
        records: what each rank has done in each group.
    """

    def __init__(self, world_size: int) -> None:
        self.records: defaultdict[tuple[int, Group], CallRecord]
        self.records = defaultdict(CallRecord)
        self._world_size = world_size
        self._lock = threading.RLock()
        self._meetings: dict[tuple[Group, int], _Meeting] = {}
        self._counts: defaultdict[tuple[int, Group], int] = defaultdict(int)
        self._waiting: dict[tuple[int, bool], _Meeting] = {}  # by rank, and whether in background
        self._tasks = Counter[int]()  # under way in the background, by rank
        self._for_task: set[int] = set()  # ranks that wait for their own background
        self._gone: dict[int, Departure] = {}
        self._broken: Verdict | None = None

    def meet(self, rank: int, group: Group, mine: Joined) -> dict[int, Joined]:
        """Join this rank's next collective of a group; return what every member brings.

        An exception may end this anywhere, and what was joined is found again: see
        :class:`CallRecord`.
        """
        record = self.records[rank, group]
        if not record.making:
            record.finish()
        one = record.next_round()
        if one is None:
            one = self._join(record, rank, group, mine)
        meeting: _Meeting = one.works[0]
        try:
            self._wait_until_over(rank, meeting)
        finally:
            with self._lock:
                self._waiting.pop((rank, group.in_background), None)
        if meeting.verdict is not None:
            raise meeting.verdict.error(rank, mine.call.site)
        return meeting.joined

    def _join(self, record: CallRecord, rank: int, group: Group, mine: Joined) -> Round:
        with self._lock:
            if self._broken is not None:
                raise self._broken.error(rank, mine.call.site)
            key = rank, group
            place = self._counts[key]
            meeting = self._meetings.setdefault((group, place), _Meeting(group, place))
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
                self._waiting[rank, meeting.group.in_background] = meeting
                self._end_vain_waits()
            # Looks again now and then: whoever came last may have been interrupted before it could
            # wake this rank.
            wake.acquire(timeout=_LOOK)

    def _is_over(self, meeting: _Meeting) -> bool:
        """True once all members have come, or never will; called with the lock held."""
        if len(meeting.joined) < len(meeting.group.members):
            meeting.verdict = meeting.verdict or self._broken
            return meeting.verdict is not None
        if not meeting.is_over:
            kinds = [joined.kind for joined in meeting.joined.values()]
            if any(kind != kinds[0] for kind in kinds):
                meeting.verdict = _disagreement(meeting)
            for member in meeting.group.members:
                if self._waiting.get((member, meeting.group.in_background)) is meeting:
                    del self._waiting[member, meeting.group.in_background]
            self._meetings.pop((meeting.group, meeting.place), None)
            meeting.is_over = True
            meeting.wake_all()
        return True

    def leave(self, outcome: Outcome) -> None:
        """Note that a rank has ended, and end the waits that need it."""
        with self._lock:
            failed = outcome.error is not None
            self._gone[outcome.rank] = Departure(outcome.rank, reason(outcome.error), failed)
            self._end_vain_waits()

    def begin_task(self, rank: int) -> None:
        """Note that a rank has begun something in its background."""
        with self._lock:
            self._tasks[rank] += 1

    def end_task(self, rank: int) -> None:
        """Note that it is over; a rank that waits for it goes on."""
        with self._lock:
            self._tasks[rank] -= 1
            self._for_task.discard(rank)
            self._end_vain_waits()

    def await_task(self, rank: int, over: threading.Event) -> None:
        """Wait until something in the background of a rank is over."""
        try:
            while not over.is_set():
                with self._lock:
                    if not over.is_set() and self._tasks[rank]:
                        self._for_task.add(rank)
                        self._end_vain_waits()
                over.wait(_LOOK)
        finally:
            with self._lock:
                self._for_task.discard(rank)

    def _end_vain_waits(self) -> None:
        """End every wait that can't be met any more; called with the lock held at each change."""
        lines: dict[int, str] = {}
        left: dict[int, Departure] = {}
        for (rank, in_background), meeting in self._waiting.items():
            where = ", in the background," if in_background else ""
            lines.setdefault(rank, f"waits{where} in {meeting.joined[rank].call}")
            for member in meeting.group.members:
                if member in self._gone and not (in_background and self._tasks[member]):
                    left[member] = self._gone[member]
        lines |= {rank: gone.why for rank, gone in self._gone.items()}
        if left:
            self.end(departed(left, lines))
        elif self._waiting and all(map(self._is_stuck, range(self._world_size))):
            what = "every rank waits, and no wait can be met"
            waiting = sorted({rank for rank, _ in self._waiting})
            self.end(deadlock(what, waiting, lines))

    def _is_stuck(self, rank: int) -> bool:
        """True if neither a rank nor what it has in the background goes on by itself."""
        waits = rank in self._gone or rank in self._for_task or (rank, False) in self._waiting
        return waits and (not self._tasks[rank] or (rank, True) in self._waiting)

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
