"""ThreadWorld: W ranks as threads of one process, for tests, docs and the testing kit.

As strict as gloo (equal dtype and shape on all ranks), and it *decides* deadlock instead of timing
it: a wait fails the moment it can never be met, because a rank that it needs has returned or
raised, or because every live rank waits.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
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
from distmetrics.comm.verdict import Departure, Outcome, Verdict, deadlock, departed, reason, settle
from distmetrics.errors import PeerLostError

_LOOK = 0.2  # seconds after which a rank that waits looks whether it need not


Thread = tuple[int, bool]  # of a rank: its main one, or that of its background


class Joined(NamedTuple):
    """What one rank brings to a meeting."""

    kind: tuple[Hashable, ...]
    sent: list[Tensor]
    call: Call


class Group(NamedTuple):
    """Ranks that meet, in their own threads or in those of their background."""

    members: tuple[int, ...]
    in_background: bool = False

    @property
    def threads(self) -> set[Thread]:
        """The threads that meet."""
        return {(member, self.in_background) for member in self.members}


Meeting = dict[int, Joined]  # the n-th collective of a group: what its ranks bring


class _RankThread(Tasks):
    """One rank of a run, and what it has under way in its background."""

    def __init__(self, number: int, meetings: Rendezvous) -> None:
        self.number, self.meetings = number, meetings
        self.states: defaultdict[Group, CallState] = defaultdict(CallState)
        self.counts = Counter[Group]()  # of its calls
        self.gone: Departure | None = None
        self.tasks = 0
        self._awaited: threading.Event | None = None  # in the background, by its own thread

    def begin(self, thread: threading.Thread) -> None:
        with self.meetings.lock:
            self.tasks += 1
            self.meetings.going.add((self.number, True))

    def end(self) -> None:
        with self.meetings.lock:
            self.tasks -= 1
            if self._awaited is not None and self._awaited.is_set():
                self.meetings.going.add((self.number, False))
            if not self.tasks:
                self.meetings.stops((self.number, True))

    def wait(self, over: threading.Event) -> None:
        with self.meetings.lock:
            self._awaited = over
            if not over.is_set():
                self.meetings.stops((self.number, False))
        try:
            over.wait()
        finally:
            self._awaited = None
            self.meetings.going.add((self.number, False))

    def leave(self, error: BaseException | None) -> None:
        """Note that the rank has ended, and end the waits that need it."""
        with self.meetings.lock:
            self.gone = Departure(self.number, reason(error), failed=error is not None)
            self.meetings.stops((self.number, False))


class Rendezvous:
    """All collectives of one run of a world."""

    def __init__(self, world_size: int) -> None:
        # Locks of C alone: in a Condition, which is Python, an exception from outside could strike
        # while its lock is half taken, and nobody would let go of it.
        self.lock = threading.RLock()  # held at each change
        threads = itertools.product(range(world_size), (False, True))
        self._wakes = {thread: threading.Lock() for thread in threads}  # taken while nothing is new
        self.ranks = [_RankThread(number, self) for number in range(world_size)]
        # Threads that go on by themselves: ranks, and whether it is their background.
        self.going = Group(tuple(range(world_size))).threads
        self._meetings: defaultdict[tuple[Group, int], Meeting] = defaultdict(dict)  # not over
        self._verdict: Verdict | None = None  # why there are no further collectives

    def meet(self, rank: _RankThread, group: Group, mine: Joined) -> Meeting:
        """Join this rank's next collective of a group; return what every member brings."""
        thread = rank.number, group.in_background
        with self.lock:
            place = group, rank.counts[group]
            meeting = self._meetings[place]
            if self._verdict is None:
                rank.counts[group] += 1
                meeting[rank.number] = mine
        try:
            while not self._ends(thread, group, meeting):
                # Looks again now and then: whoever came last may have been interrupted before it
                # could wake this rank.
                self._wakes[thread].acquire(timeout=_LOOK)
        finally:
            with self.lock:
                self.going.add(thread)
        with self.lock:
            if self._meetings.pop(place, None) is not None:  # the first to see that it is over
                self.going |= group.threads
                self._wake_all()
            verdict = self._verdict
            if len(meeting) == len(group.members):
                verdict = _disagreement(meeting)
        if verdict is not None:
            raise verdict.error(rank.number, mine.call.site)
        return meeting

    def _ends(self, thread: Thread, group: Group, meeting: Meeting) -> bool:
        """Return True if a wait is over; else note that the thread does not go on by itself."""
        with self.lock:
            if self._is_over(group, meeting):
                return True
            self.stops(thread)
        return self._is_over(group, meeting)

    def _wake_all(self) -> None:
        for wake in self._wakes.values():
            if wake.locked():
                wake.release()

    def _is_over(self, group: Group, meeting: Meeting) -> bool:
        """True once all members have come, or never will."""
        return len(meeting) == len(group.members) or self._verdict is not None

    def stops(self, thread: Thread) -> None:
        """Note that a thread does not go on by itself; end every wait if one can't be met now."""
        self.going.discard(thread)
        left: dict[int, Departure] = {}
        lines = {rank.number: rank.gone.why for rank in self.ranks if rank.gone is not None}
        waiting: set[int] = set()
        for (group, _), meeting in self._meetings.items():
            if self._is_over(group, meeting):
                continue
            where = "waits, in the background, in" if group.in_background else "waits in"
            for number, joined in meeting.items():
                lines.setdefault(number, f"{where} {joined.call}")
                waiting.add(number)
            for number in group.members:
                rank = self.ranks[number]
                if rank.gone is not None and not (group.in_background and rank.tasks):
                    left[number] = rank.gone
        if left:
            self.end(departed(left, lines))
        elif waiting and not self.going:
            what = "every rank waits, and no wait can be met"
            self.end(deadlock(what, sorted(waiting), lines))

    def end(self, verdict: Verdict) -> None:
        """End every wait, and refuse later calls."""
        with self.lock:
            self._verdict = self._verdict or verdict
            self._wake_all()


def _disagreement(meeting: Meeting) -> Verdict | None:
    """Return why a meeting of all members fails, if it does."""
    if len({joined.kind for joined in meeting.values()}) == 1:
        return None
    return Verdict(
        "mismatch",
        "ranks disagree on a collective",
        tuple(sorted(meeting)),
        {rank: str(joined.call) for rank, joined in meeting.items()},
        likely="a condition, a loop length or a shape that differs between ranks.",
        do="make every rank call the same collectives, in the same order, with equal shapes and "
        "dtypes.",
        notes=("No data was moved.",),
    )


class ThreadWorld:
    """A world of ranks that are threads of this process.

    Args:
        world_size: number of ranks.

    Raises:
        ValueError: ``world_size`` is below 1.

    >>> ThreadWorld(2).run(lambda comm: comm.all_reduce(torch.tensor(comm.rank + 1), "sum"))
    [tensor(3), tensor(3)]
    """

    def __init__(self, world_size: int) -> None:
        if world_size < 1:
            raise ValueError(f"a world needs at least one rank, got world_size={world_size}")
        self.world_size = world_size
        self.meetings = Rendezvous(world_size)  # the collectives of the run under way

    def communicator(self, rank: int) -> ThreadCommunicator:
        """Return the communicator of a rank."""
        return ThreadCommunicator(self.meetings.ranks[rank], Group(tuple(range(self.world_size))))

    def run(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        """Call ``fn(comm, *args)`` on every rank; return the results, or raise the first error."""
        return settle(self.outcomes(fn, *args))

    def outcomes(
        self, fn: Callable[..., Any], *args: Any, limit: float | None = None
    ) -> list[Outcome]:
        """Like :meth:`run`, but return how each rank ended and raise nothing.

        Args:
            fn: what each rank does.
            args: passed to every rank.
            limit: seconds after which a rank that has not ended is left behind; its outcome says
                where it was.
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
            self.meetings.ranks[rank].leave(outcome.error)

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
            return [
                outcomes.get(rank) or _left_behind(rank, thread, limit or 0)
                for rank, thread in enumerate(threads)
            ]
        finally:
            if len(outcomes) < self.world_size:  # no rank that was left behind may wait for ever
                what = "this run was stopped, or its limit is over"
                self.meetings.end(Verdict("peer-lost", what, notes=()))


def _left_behind(rank: int, thread: threading.Thread, limit: float) -> Outcome:
    """Return that a rank has not ended, and where it is."""
    what = (
        f"rank {rank} was still busy after {limit:g} s, the limit of this run, and was left behind"
    )
    error = PeerLostError(what, rank=rank)
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is not None:
        stack = "".join(traceback.format_stack(frame)).rstrip()
        error.add_note(f"rank {rank} was here:\n{stack}")
    return Outcome(rank, error=error)


class ThreadCommunicator(Communicator):
    """One rank's end of a :class:`ThreadWorld`, or of a subgroup of it."""

    device = torch.device("cpu")

    def __init__(self, rank: _RankThread, group: Group) -> None:
        self._me, self._group = rank, group
        self.rank = group.members.index(rank.number)
        self.world_size = len(group.members)
        self.members, self.tasks, self.state = group.members, rank, rank.states[group]

    def break_off(self, verdict: Verdict, *, at_once: bool) -> None:
        """Tell the other ranks that this rank makes no further call on this communicator."""
        if at_once:  # else the next call of this rank, or its end, tells
            self._me.meetings.end(verdict)

    def subgroup(self, ranks: Sequence[int]) -> ThreadCommunicator:
        """Return this rank's end of the subgroup ``ranks`` (ranks of this communicator)."""
        members = tuple(self.members[rank] for rank in sorted(ranks))
        return ThreadCommunicator(self._me, self._group._replace(members=members))

    def background(self) -> ThreadCommunicator:
        """Return a communicator of the same ranks, for a second thread of each."""
        return ThreadCommunicator(self._me, self._group._replace(in_background=True))

    def _meet(self, op: str, *sent: Tensor) -> list[list[Tensor]]:
        copies = [x.detach().clone(memory_format=torch.contiguous_format) for x in sent]
        call = current_call(op, sent[0] if sent else None)
        kind = op, *((x.dtype, x.shape) for x in sent), *call.exact
        met = self._me.meetings.meet(self._me, self._group, Joined(kind, copies, call))
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
