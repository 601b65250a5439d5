"""ThreadWorld: W ranks as threads of one process, for tests, docs and the testing kit.

As strict as gloo (equal dtype and shape on all ranks), and it *decides* deadlock instead of timing
it: a wait fails the moment it can never be met, because a rank that it needs has returned or
raised, or because every live rank waits.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(eq=False)
class _Collective:
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


class Rendezvous:
    """All collectives of one run of a world.

    Attributes:
        states: the calls of each rank in each group.
        broken_by: by rank, the group that it has broken, and why; told if the rank returns.
    """

    def __init__(self, world_size: int) -> None:
        self.states: defaultdict[tuple[int, Group], CallState] = defaultdict(CallState)
        self._world_size = world_size
        self._lock = threading.RLock()
        self._meetings: dict[tuple[Group, int], _Collective] = {}
        self._counts: defaultdict[tuple[int, Group], int] = defaultdict(int)
        self._waiting: dict[tuple[int, bool], _Collective] = {}  # by rank, in background or not
        self._tasks = Counter[int]()  # under way in the background, by rank
        self._for_task: set[int] = set()  # ranks that wait for their own background
        self._gone: dict[int, Departure] = {}
        self._broken: Verdict | None = None
        self._broken_groups: dict[Group, Verdict] = {}
        self.broken_by: dict[int, tuple[Group, Verdict]] = {}

    def meet(self, rank: int, group: Group, mine: Joined) -> dict[int, Joined]:
        """Join this rank's next collective of a group; return what every member brings."""
        meeting = self._join(rank, group, mine)
        try:
            self._wait_until_over(rank, meeting)
        finally:
            with self._lock:
                self._waiting.pop((rank, group.in_background), None)
        if meeting.verdict is not None:
            raise meeting.verdict.error(rank, mine.call.site)
        return meeting.joined

    def _join(self, rank: int, group: Group, mine: Joined) -> _Collective:
        with self._lock:
            broken = self._broken or self._broken_groups.get(group)
            if broken is not None:
                raise broken.error(rank, mine.call.site)
            place = self._counts[rank, group]
            meeting = self._meetings.setdefault((group, place), _Collective(group, place))
            self._counts[rank, group] = place + 1
            meeting.joined[rank] = mine
        return meeting

    def _wait_until_over(self, rank: int, meeting: _Collective) -> None:
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

    def _is_over(self, meeting: _Collective) -> bool:
        """True once all members have come, or never will; called with the lock held."""
        if len(meeting.joined) < len(meeting.group.members):
            broken = self._broken or self._broken_groups.get(meeting.group)
            meeting.verdict = meeting.verdict or broken
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
            if not failed and outcome.rank in self.broken_by:
                group, verdict = self.broken_by[outcome.rank]
                self.end(verdict, group)
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

    def end(self, verdict: Verdict, group: Group | None = None) -> None:
        """End every wait, or those in a group, and refuse later calls.

        Also in groups that could go on: a rank that they wait for may call next, and hear it then.
        """
        with self._lock:
            if group is None:
                self._broken = verdict
            else:
                self._broken_groups[group] = verdict
            for key, meeting in [*self._waiting.items()]:
                if group in (None, meeting.group):
                    del self._waiting[key]
                    meeting.verdict = verdict
                    meeting.wake_all()


def _disagreement(meeting: _Collective) -> Verdict:
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


_LAST_WORDS = 1.0  # seconds for ranks that were told to end, before their world goes on without


class LeftBehind(SystemExit):
    """Ends the Python code of a rank whose world no longer waits for it, nor hears its error."""


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

    def communicator(self, rank: int, members: Sequence[int] | None = None) -> ThreadCommunicator:
        """Return rank ``rank``'s end of the world, or of the subgroup ``members``."""
        everybody = range(self.world_size)
        return ThreadCommunicator(self, rank, tuple(everybody if members is None else members))

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
        late = [rank for rank in range(self.world_size) if rank not in outcomes]
        ended = outcomes | self._leave_behind({rank: threads[rank] for rank in late}, limit or 0)
        return [ended[rank] for rank in range(self.world_size)]

    def _leave_behind(
        self, late: Mapping[int, threading.Thread], limit: float
    ) -> dict[int, Outcome]:
        """Return where ranks are that have not ended, and end what can be ended."""
        frames = sys._current_frames()
        outcomes = {}
        for rank, thread in late.items():
            text = f"was still busy after {limit:g} s, the limit of this run, and was left behind"
            error = PeerLostError(f"rank {rank} {text}", rank=rank)
            frame = frames.get(thread.ident or 0)
            if frame is not None:
                stack = traceback.extract_stack(frame)
                own = [depth for depth, call in enumerate(stack, 1) if call.filename == __file__]
                lines = "".join(traceback.format_list(stack[min(own, default=0) :]))
                error.add_note(f"rank {rank} was here:\n{lines.rstrip()}")
            outcomes[rank] = Outcome(rank, error=error)
        if late:
            self.meetings.end(_lost("the limit of this run is over"))
        for thread in late.values():  # ends a loop of Python code; a call that never returns stays
            ident, error_class = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(LeftBehind)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error_class)
        until = time.monotonic() + _LAST_WORDS
        for thread in late.values():
            thread.join(max(0.0, until - time.monotonic()))
        return outcomes


def _lost(what: str) -> Verdict:
    return Verdict("peer-lost", what, notes=())


class _TasksOfRank(Tasks):
    def __init__(self, meetings: Rendezvous, rank: int) -> None:
        self.begin = functools.partial(meetings.begin_task, rank)  # type: ignore[method-assign]
        self.end = functools.partial(meetings.end_task, rank)  # type: ignore[method-assign]
        self.wait = functools.partial(meetings.await_task, rank)  # type: ignore[method-assign]


class ThreadCommunicator(Communicator):
    """One rank's end of a :class:`ThreadWorld`, or of a subgroup of it."""

    shares_process = True

    device = torch.device("cpu")

    def __init__(
        self,
        world: ThreadWorld,
        rank: int,
        members: tuple[int, ...],
        *,
        in_background: bool = False,
    ) -> None:
        if rank not in members:
            raise ValueError(f"rank {rank} is no member of the group {members}")
        self._world, self._meetings = world, world.meetings
        self._me = rank
        self._members = members
        self._group = Group(members, in_background)
        self.rank = members.index(rank)
        self.world_size = len(members)
        self._state = world.meetings.states[rank, self._group]

    @property
    def members(self) -> Sequence[int]:
        """Which ranks of the world these are."""
        return self._members

    def break_off(self, verdict: Verdict, *, at_once: bool) -> None:
        """Tell the other ranks that this rank makes no further call on this communicator."""
        if at_once:
            self._meetings.end(verdict, self._group)
        else:
            self._meetings.broken_by[self._me] = self._group, verdict

    def subgroup(self, ranks: Sequence[int]) -> ThreadCommunicator:
        """Return this rank's end of the subgroup ``ranks`` (ranks of this communicator)."""
        members = tuple(self.members[rank] for rank in sorted(ranks))
        in_background = self._group.in_background
        return ThreadCommunicator(self._world, self._me, members, in_background=in_background)

    def background(self) -> ThreadCommunicator:
        """Return a communicator of the same ranks, for a second thread of each."""
        return ThreadCommunicator(self._world, self._me, self._members, in_background=True)

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
