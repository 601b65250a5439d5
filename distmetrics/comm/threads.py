"""ThreadWorld: W ranks as threads of one process, for tests, docs and the testing kit.

As strict as gloo (equal dtype and shape on all ranks), and it *decides* deadlock instead of timing
it: a wait fails the moment it can never be met, because a rank that it needs has returned or
raised, or because every live rank waits.
"""

from __future__ import annotations

import contextvars
import functools
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.comm.communicator import (
    Call,
    CallState,
    Communicator,
    Op,
    Tasks,
    check_parts,
    check_src,
    current_call,
    fold,
    use,
)
from distmetrics.comm.outcome import Outcome, settle
from distmetrics.comm.verdict import Departure, Verdict, deadlock, departed, reason
from distmetrics.errors import PeerLostError

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


class _Meeting:
    """The n-th collective of one group of ranks: what they bring, by rank, and how it ended."""

    def __init__(self, group: Group, lock: threading.RLock) -> None:
        self.group = group
        self.joined: dict[int, Joined] = {}
        self.changed = threading.Condition(lock)
        self.is_over = False
        self.verdict: Verdict | None = None

    def end(self, verdict: Verdict | None) -> None:
        self.is_over, self.verdict = True, verdict
        self.changed.notify_all()


class Rendezvous:
    """All collectives of one run of a world."""

    def __init__(self, world_size: int) -> None:
        self.states: defaultdict[tuple[int, Group], CallState] = defaultdict(CallState)
        # By rank, the group that it has broken, and why; told if the rank returns.
        self.broken_by: dict[int, tuple[Group, Verdict]] = {}
        self._world_size = world_size
        self._lock = threading.RLock()
        self._meetings: dict[tuple[Group, int], _Meeting] = {}  # not over
        self._counts = Counter[tuple[int, Group]]()
        self._waiting: dict[tuple[int, bool], _Meeting] = {}  # by rank, in background or not
        self._tasks = Counter[int]()  # under way in the background, by rank
        self._awaited: dict[int, threading.Event] = {}  # in the background, by the rank that waits
        self._gone: dict[int, Departure] = {}
        self._broken: dict[Group | None, Verdict] = {}  # None: all groups

    def meet(self, rank: int, group: Group, mine: Joined) -> dict[int, Joined]:
        """Join this rank's next collective of a group; return what every member brings."""
        here = rank, group.in_background
        with self._lock:
            if (broken := self._why_broken(group)) is not None:
                raise broken.error(rank, mine.call.site)
            place = group, self._counts[rank, group]
            meeting = self._meetings.setdefault(place, _Meeting(group, self._lock))
            self._counts[rank, group] += 1
            meeting.joined[rank] = mine
            self._waiting[here] = meeting
            try:
                while not self._is_over(meeting):
                    self._end_vain_waits()
                    # Looks again now and then: whoever came last may have been interrupted before
                    # it could wake this rank.
                    meeting.changed.wait(_LOOK)
            finally:
                self._waiting.pop(here, None)
            self._meetings.pop(place, None)
        if meeting.verdict is not None:
            raise meeting.verdict.error(rank, mine.call.site)
        return meeting.joined

    def _why_broken(self, group: Group) -> Verdict | None:
        return self._broken.get(None) or self._broken.get(group)

    def _is_over(self, meeting: _Meeting) -> bool:
        """True once all members have come, or never will; called with the lock held."""
        if meeting.is_over:
            return True
        if len(meeting.joined) == len(meeting.group.members):
            first, *others = [joined.kind for joined in meeting.joined.values()]
            differ = any(kind != first for kind in others)
            meeting.end(_disagreement(meeting) if differ else None)
        elif (broken := self._why_broken(meeting.group)) is not None:
            meeting.end(broken)
        return meeting.is_over

    def leave(self, outcome: Outcome) -> None:
        """Note that a rank has ended, and end the waits that need it."""
        with self._lock:
            failed = outcome.error is not None
            if not failed and outcome.rank in self.broken_by:
                group, verdict = self.broken_by[outcome.rank]
                self.end(verdict, group)
            self._gone[outcome.rank] = Departure(outcome.rank, reason(outcome.error), failed)
            self._end_vain_waits()

    def count_task(self, rank: int, change: int) -> None:
        """Note that something in the background of a rank has begun, or is over."""
        with self._lock:
            self._tasks[rank] += change
            self._end_vain_waits()

    def await_task(self, rank: int, over: threading.Event) -> None:
        """Wait until something in the background of a rank is over."""
        with self._lock:
            self._awaited[rank] = over
            self._end_vain_waits()
        try:
            over.wait()
        finally:
            self._awaited.pop(rank, None)

    def _end_vain_waits(self) -> None:
        """End every wait that can't be met any more; called with the lock held at each change."""
        waiting = {here: meeting for here, meeting in self._waiting.items() if not meeting.is_over}
        lines: dict[int, str] = {}
        left: dict[int, Departure] = {}
        for (rank, in_background), meeting in waiting.items():
            where = ", in the background," if in_background else ""
            lines.setdefault(rank, f"waits{where} in {meeting.joined[rank].call}")
            for member in meeting.group.members:
                if member in self._gone and not (in_background and self._tasks[member]):
                    left[member] = self._gone[member]
        lines |= {rank: gone.why for rank, gone in self._gone.items()}
        stuck = [rank for rank in range(self._world_size) if self._is_stuck(rank, waiting)]
        if left:
            self.end(departed(left, lines))
        elif waiting and len(stuck) == self._world_size:
            what = "every rank waits, and no wait can be met"
            self.end(deadlock(what, sorted({rank for rank, _ in waiting}), lines))

    def _is_stuck(self, rank: int, waiting: Container[tuple[int, bool]]) -> bool:
        """True if neither a rank nor what it has in the background goes on by itself."""
        awaited = self._awaited.get(rank)
        waits_for_own = awaited is not None and not awaited.is_set()
        waits = rank in self._gone or waits_for_own or (rank, False) in waiting
        return waits and (not self._tasks[rank] or (rank, True) in waiting)

    def end(self, verdict: Verdict, group: Group | None = None) -> None:
        """End every wait, or those in a group, and refuse later calls.

        Also in groups that could go on: a rank that they wait for may call next, and hear it then.
        """
        with self._lock:
            self._broken[group] = verdict
            for meeting in self._waiting.values():
                self._is_over(meeting)


def _disagreement(meeting: _Meeting) -> Verdict:
    return Verdict(
        "mismatch",
        "ranks disagree on a collective",
        tuple(sorted(meeting.joined)),
        {rank: str(joined.call) for rank, joined in meeting.joined.items()},
        likely="a condition, a loop length or a shape that differs between ranks.",
        do="make every rank call the same collectives, in the same order, with equal shapes and "
        "dtypes.",
        notes=("No data was moved.",),
    )


class ThreadWorld:
    """A world of ``world_size`` ranks, each a thread of this process.

    Args:
        world_size: number of ranks.

    Attributes:
        meetings: the collectives of the run under way.

    >>> ThreadWorld(2).run(lambda comm: comm.all_reduce(torch.tensor(comm.rank + 1), "sum"))
    [tensor(3), tensor(3)]
    """

    def __init__(self, world_size: int) -> None:
        if world_size < 1:
            raise ValueError(f"a world needs at least one rank, got world_size={world_size}")
        self.world_size = world_size
        self.meetings = Rendezvous(world_size)

    def communicator(self, rank: int) -> ThreadCommunicator:
        """Return rank ``rank``'s end of the world."""
        return ThreadCommunicator(self.meetings, rank, Group(tuple(range(self.world_size))))

    def run(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        """Call ``fn(comm, *args)`` on every rank; return the results, or raise the first cause."""
        return settle(self.outcomes(fn, *args))

    def outcomes(
        self, fn: Callable[..., Any], *args: Any, limit: float | None = None
    ) -> list[Outcome]:
        """Like :meth:`run`, but return how each rank ended and raise nothing.

        A deadlock is decided at once. What never comes back outside of a collective is left behind
        after ``limit`` seconds, and its outcome says where each rank was.
        """
        self.meetings = Rendezvous(self.world_size)  # a world may be run again
        outcomes: dict[int, Outcome] = {}

        def main(rank: int) -> None:
            try:
                comm = self.communicator(rank)
                with use(comm):
                    outcome = Outcome(rank, fn(comm, *args))
            except BaseException as error:  # noqa: BLE001  (handed to the caller, whatever it is)
                outcome = Outcome(rank, error=error)
            outcomes[rank] = outcome
            self.meetings.leave(outcome)

        threads = []
        for rank in range(self.world_size):
            run = functools.partial(contextvars.copy_context().run, main, rank)
            threads.append(threading.Thread(target=run, name=f"rank {rank}", daemon=True))
        deadline = None if limit is None else time.monotonic() + limit
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except BaseException as error:  # Ctrl-C in the main thread: no rank may wait for ever
            self.meetings.end(_lost(f"the world was stopped: {error!r}"))
            raise
        ended = [
            outcomes.get(rank) or _left_behind(rank, thread, limit or 0)
            for rank, thread in enumerate(threads)
        ]
        if len(outcomes) < self.world_size:
            self.meetings.end(_lost("the limit of this run is over"))
        return ended


def _left_behind(rank: int, thread: threading.Thread, limit: float) -> Outcome:
    """Return that a rank has not ended, and where it is."""
    text = f"was still busy after {limit:g} s, the limit of this run, and was left behind"
    error = PeerLostError(f"rank {rank} {text}", rank=rank)
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is not None:
        stack = "".join(traceback.format_stack(frame)).rstrip()
        error.add_note(f"rank {rank} was here:\n{stack}")
    return Outcome(rank, error=error)


def _lost(what: str) -> Verdict:
    return Verdict("peer-lost", what, notes=())


class _TasksOfRank(Tasks):
    def __init__(self, meetings: Rendezvous, rank: int) -> None:
        self._meetings, self._rank = meetings, rank

    def begin(self) -> None:
        self._meetings.count_task(self._rank, 1)

    def end(self) -> None:
        self._meetings.count_task(self._rank, -1)

    def wait(self, over: threading.Event) -> None:
        self._meetings.await_task(self._rank, over)


class ThreadCommunicator(Communicator):
    """One rank's end of a :class:`ThreadWorld`, or of a subgroup of it."""

    device = torch.device("cpu")

    def __init__(self, meetings: Rendezvous, rank: int, group: Group) -> None:
        if rank not in group.members:
            raise ValueError(f"rank {rank} is no member of the group {group.members}")
        self._meetings, self._me, self._group = meetings, rank, group
        self.rank = group.members.index(rank)
        self.world_size = len(group.members)
        self._state = meetings.states[rank, group]

    @property
    def members(self) -> Sequence[int]:
        """Which ranks of the world these are."""
        return self._group.members

    def break_off(self, verdict: Verdict, *, at_once: bool) -> None:
        """Tell the other ranks that this rank makes no further call on this communicator."""
        if at_once:
            self._meetings.end(verdict, self._group)
        else:
            self._meetings.broken_by[self._me] = self._group, verdict

    def _of(self, group: Group) -> ThreadCommunicator:
        return ThreadCommunicator(self._meetings, self._me, group)

    def subgroup(self, ranks: Sequence[int]) -> ThreadCommunicator:
        """Return this rank's end of the subgroup ``ranks`` (ranks of this communicator)."""
        members = tuple(self.members[rank] for rank in sorted(ranks))
        return self._of(self._group._replace(members=members))

    def background(self) -> ThreadCommunicator:
        """Return a communicator of the same ranks, for a second thread of each."""
        return self._of(self._group._replace(in_background=True))

    @property
    def tasks(self) -> Tasks:
        """The calls that this rank makes in its background."""
        return _TasksOfRank(self._meetings, self._me)

    def _meet(self, op: str, *sent: Tensor) -> list[list[Tensor]]:
        copies = [x.detach().clone(memory_format=torch.contiguous_format) for x in sent]
        call = current_call(op, sent[0] if sent else None)
        kind = op, [(x.dtype, x.shape) for x in sent], call.exact
        met = self._meetings.meet(self._me, self._group, Joined(kind, copies, call))
        return [met[member].sent for member in self.members]

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Return every rank's ``x``, in rank order."""
        return [row.clone() for (row,) in self._meet("all_gather", x)]

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Return the elementwise ``op`` over all ranks, folded in rank order."""
        return fold([row for (row,) in self._meet(f"all_reduce {op}", x)], op)

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Give ``parts[r]`` to rank r; return what each rank gave to this one."""
        check_parts(parts, self.world_size)
        return [sent[self.rank].clone() for sent in self._meet("all_to_all", *parts)]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Return rank ``src``'s ``x``."""
        check_src(src, self.world_size)
        return self._meet(f"broadcast from rank {src}", x)[src][0].clone()

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._meet("barrier")
