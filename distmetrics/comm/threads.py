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
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from distmetrics.comm.base import Op, check_parts, check_src, current_call, fold
from distmetrics.comm.current import use
from distmetrics.comm.meetings import Group, Joined, Meetings
from distmetrics.comm.thread_pool import Task, ThreadPool
from distmetrics.errors import PeerLostError
from distmetrics.liveness.outcome import Outcome, settle
from distmetrics.liveness.verdict import Verdict

_LAST_WORDS = 1.0  # seconds for ranks that were told to end, before their world goes on without


class LeftBehind(SystemExit):
    """Ends the Python code of a rank whose world no longer waits for it, nor hears its error."""


class ThreadWorld:
    """A world of ``world_size`` ranks, each a thread of this process.

    Args:
        world_size: number of ranks.
        pool: whose threads they are; by default new ones each time.

    Attributes:
        meetings: the collectives of the run under way.

    >>> ThreadWorld(2).run(lambda comm: comm.all_reduce(torch.tensor(comm.rank + 1), "sum"))
    [tensor(3), tensor(3)]
    """

    def __init__(self, world_size: int, *, pool: ThreadPool | None = None) -> None:
        if world_size < 1:
            raise ValueError(f"a world needs at least one rank, got world_size={world_size}")
        self.world_size = world_size
        self._pool = pool
        self.meetings = Meetings(world_size)

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
        self.meetings = Meetings(self.world_size)  # a world may be run again
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
            self.meetings.leave(outcome)

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
            self.meetings.end(_lost(f"the world was stopped: {error!r}"))
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
            self.meetings.end(_lost("the limit of this run is over"))
        for rank in late:  # ends a loop of Python code; a call that never returns stays
            tasks[rank].abandon(LeftBehind)
        until = time.monotonic() + _LAST_WORDS
        for rank in late:
            tasks[rank].over.wait(max(0.0, until - time.monotonic()))
        return outcomes


def _lost(what: str) -> Verdict:
    return Verdict(PeerLostError, what, notes=())


class ThreadCommunicator:
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
        self.members = members
        self._group = Group(members, in_background)
        self.rank = members.index(rank)
        self.world_size = len(members)
        self.record = world.meetings.records[rank, self._group]

    def subgroup(self, ranks: Sequence[int]) -> ThreadCommunicator:
        """Return this rank's end of the subgroup ``ranks`` (ranks of this communicator)."""
        members = tuple(self.members[rank] for rank in sorted(ranks))
        in_background = self._group.in_background
        return ThreadCommunicator(self._world, self._me, members, in_background=in_background)

    def background(self) -> ThreadCommunicator:
        """Return a communicator of the same ranks, for a second thread of each."""
        members = self.members
        return ThreadCommunicator(self._world, self._me, members, in_background=True)

    def begin_task(self) -> None:
        """Note that this rank's second thread has begun something."""
        self._meetings.begin_task(self._me)

    def end_task(self) -> None:
        """Note that it is over."""
        self._meetings.end_task(self._me)

    def await_task(self, over: threading.Event) -> None:
        """Wait until it is over, or no wait of this world can be met."""
        self._meetings.await_task(self._me, over)

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
