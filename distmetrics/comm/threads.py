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
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.comm.base import Call, Op, check_parts, check_src, current_call, fold
from distmetrics.comm.current import use
from distmetrics.comm.thread_pool import Task, ThreadPool
from distmetrics.errors import MismatchError, PeerLostError
from distmetrics.liveness.call_record import CallRecord, Round
from distmetrics.liveness.departures import Departure, reason
from distmetrics.liveness.outcome import Outcome, settle
from distmetrics.liveness.verdict import Verdict, deadlock, departed

_LOOK = 0.2  # seconds after which a rank that waits looks whether it need not
_LAST_WORDS = 1.0  # seconds for ranks that were told to end, before their world goes on without


class LeftBehind(SystemExit):
    """Ends the Python code of a rank whose world no longer waits for it, nor hears its error."""


class _Joined(NamedTuple):
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
    joined: dict[int, _Joined] = field(default_factory=dict)
    wake: dict[int, Any] = field(default_factory=dict)
    verdict: Verdict | None = None
    is_over: bool = False

    def wake_all(self) -> None:
        """Let the ranks go on that wait."""
        while self.wake:
            self.wake.popitem()[1].release()


class ThreadWorld:
    """A world of ``world_size`` ranks, each a thread of this process.

    Args:
        world_size: number of ranks.
        pool: whose threads they are; by default new ones each time.

    >>> ThreadWorld(2).run(lambda comm: comm.all_reduce(torch.tensor(comm.rank + 1), "sum"))
    [tensor(3), tensor(3)]
    """

    def __init__(self, world_size: int, *, pool: ThreadPool | None = None) -> None:
        if world_size < 1:
            raise ValueError(f"a world needs at least one rank, got world_size={world_size}")
        self.world_size = world_size
        self._pool = pool
        # Not a Condition, whose Python code an interrupt can leave with the lock held.
        self._lock = threading.RLock()
        self._reset()

    def _reset(self) -> None:
        """Forget all that happened: a world may be run again."""
        self._meetings: dict[tuple[tuple[int, ...], int], _Meeting] = {}
        self._counts: defaultdict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        self._waiting: dict[int, _Meeting] = {}
        self._gone: dict[int, Departure] = {}
        self._broken: Verdict | None = None
        self._records: defaultdict[tuple[int, tuple[int, ...]], CallRecord]
        self._records = defaultdict(CallRecord)

    def record(self, rank: int, members: tuple[int, ...]) -> CallRecord:
        """Return what a rank has done in a group."""
        return self._records[rank, members]

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
        self._reset()
        outcomes: dict[int, Outcome] = {}

        def main(rank: int) -> None:
            comm = self.communicator(rank)
            # As in a new thread, whatever the last rank in this one has left.
            torch.set_grad_enabled(True)
            try:
                with use(comm):
                    outcome = Outcome(rank, fn(comm, *args))
            except BaseException as error:  # noqa: BLE001  (handed to the caller, whatever it is)
                outcome = Outcome(rank, error=error)
            outcomes[rank] = outcome
            self._leave(outcome)

        pool = self._pool or ThreadPool()
        try:
            tasks = []
            for rank in range(self.world_size):
                task = functools.partial(contextvars.copy_context().run, main, rank)
                tasks.append(pool.start(f"rank {rank}", task))
            self._wait_for(tasks, limit)
            ended = dict(outcomes)
            late = [rank for rank in range(self.world_size) if rank not in ended]
            ended |= self._leave_behind(late, tasks, limit or 0)
        finally:
            if pool is not self._pool:
                pool.close()
        return [ended[rank] for rank in range(self.world_size)]

    def _wait_for(self, tasks: Sequence[Task], limit: float | None) -> None:
        deadline = None if limit is None else time.monotonic() + limit
        try:
            for task in tasks:
                task.over.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except BaseException as error:  # Ctrl-C in the main thread: no rank may wait for ever
            self._break(_lost(f"the world was stopped: {error!r}"))
            raise

    def _leave_behind(
        self, late: Sequence[int], tasks: Sequence[Task], limit: float
    ) -> dict[int, Outcome]:
        """Return where ranks are that have not ended, and end what can be ended."""
        frames = sys._current_frames()
        outcomes = {}
        for rank in late:
            text = f"was still busy after {limit:g} s, the limit of this run, and was left behind"
            error = PeerLostError(f"rank {rank} {text}", rank=rank)
            frame = frames.get(tasks[rank].ident)
            if frame is not None:
                stack = traceback.extract_stack(frame)
                own = [depth for depth, call in enumerate(stack, 1) if call.filename == __file__]
                lines = "".join(traceback.format_list(stack[min(own, default=0) :]))
                error.add_note(f"rank {rank} was here:\n{lines.rstrip()}")
            outcomes[rank] = Outcome(rank, error=error)
        if late:
            self._break(_lost("the limit of this run is over"))
        for rank in late:  # ends a loop of Python code; a call that never returns stays
            tasks[rank].abandon(LeftBehind)
        until = time.monotonic() + _LAST_WORDS
        for rank in late:
            tasks[rank].over.wait(max(0.0, until - time.monotonic()))
        return outcomes

    def meet(
        self, rank: int, members: tuple[int, ...], mine: _Joined
    ) -> dict[int, _Joined]:
        """Join this rank's next collective of ``members``; return what every member brings.

        An exception may end this anywhere, and what was joined is found again: see
        :class:`CallRecord`.
        """
        record = self._records[rank, members]
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

    def _join(
        self, record: CallRecord, rank: int, members: tuple[int, ...], mine: _Joined
    ) -> Round:
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

    def _leave(self, outcome: Outcome) -> None:
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
            self._break(departed(left, lines))
        elif self._waiting and len(lines) == self.world_size:
            what = "every rank waits, and no wait can be met"
            self._break(deadlock(what, sorted(self._waiting), lines))

    def _break(self, verdict: Verdict) -> None:
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


def _lost(what: str) -> Verdict:
    return Verdict(PeerLostError, what, notes=())


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


class ThreadCommunicator:
    """One rank's end of a :class:`ThreadWorld`, or of a subgroup of it."""

    shares_process = True

    device = torch.device("cpu")

    def __init__(self, world: ThreadWorld, rank: int, members: tuple[int, ...]) -> None:
        if rank not in members:
            raise ValueError(f"rank {rank} is no member of the group {members}")
        self._world = world
        self._me = rank
        self._members = members
        self.rank = members.index(rank)
        self.world_size = len(members)
        self.record = world.record(rank, members)

    def subgroup(self, ranks: Sequence[int]) -> ThreadCommunicator:
        """Return this rank's end of the subgroup ``ranks`` (ranks of this communicator)."""
        members = tuple(self._members[rank] for rank in sorted(ranks))
        return ThreadCommunicator(self._world, self._me, members)

    def _meet(self, op: str, *sent: Tensor) -> list[list[Tensor]]:
        copies = [x.detach().clone(memory_format=torch.contiguous_format) for x in sent]
        call = current_call(op, sent[0] if sent else None)
        kind = op, [(x.dtype, x.shape) for x in sent], call.exact
        met = self._world.meet(self._me, self._members, _Joined(kind, copies, call))
        return [met[member].sent for member in self._members]

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
