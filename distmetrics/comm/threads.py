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
from typing import Any

import torch
from torch import Tensor

from distmetrics.comm.base import Call, Meanwhile, Op, check_parts, check_src, current_call, fold
from distmetrics.comm.board import reason
from distmetrics.comm.crew import Crew, Shift
from distmetrics.comm.current import use
from distmetrics.comm.outcome import Outcome, settle
from distmetrics.errors import (
    DistmetricsError,
    DivergedError,
    MismatchError,
    PeerLostError,
    compose,
    who,
)

_LAST_WORDS = (
    1.0  # seconds for ranks that were told to end, before their world goes on without them
)


class LeftBehind(SystemExit):
    """Ends the Python code of a rank that its world no longer waits for; nobody hears what it has
    to say.
    """


@dataclass
class _Meeting:
    """The n-th collective of one group of ranks: who has come, and how it ended."""

    members: tuple[int, ...]
    calls: dict[int, Call] = field(default_factory=dict)
    kinds: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    sent: dict[int, list[Tensor]] = field(default_factory=dict)
    error: Callable[[int], DistmetricsError] | None = None

    @property
    def complete(self) -> bool:
        return len(self.calls) == len(self.members)


class ThreadWorld:
    """A world of ``world_size`` ranks, each a thread of this process.

    Args:
        world_size: number of ranks.
        crew: whose threads they are; by default new ones each time.

    >>> ThreadWorld(2).run(lambda comm: comm.all_reduce(torch.tensor(comm.rank + 1), "sum"))
    [tensor(3), tensor(3)]
    """

    def __init__(self, world_size: int, *, crew: Crew | None = None) -> None:
        if world_size < 1:
            raise ValueError(f"a world needs at least one rank, got world_size={world_size}")
        self.world_size = world_size
        self._crew = crew
        self._change = threading.Condition()
        self._reset()

    def _reset(self) -> None:
        """Forget all that happened: a world may be run again."""
        self._meetings: dict[tuple[tuple[int, ...], int], _Meeting] = {}
        self._counts: defaultdict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        self._waiting: dict[int, _Meeting] = {}
        self._gone: dict[int, str] = {}
        self._raised: set[int] = set()
        self._broken: Callable[[int], DistmetricsError] | None = None

    def communicator(self, rank: int, members: Sequence[int] | None = None) -> ThreadCommunicator:
        """Return rank ``rank``'s end of the world, or of the subgroup ``members``."""
        return ThreadCommunicator(
            self, rank, tuple(range(self.world_size)) if members is None else tuple(members)
        )

    def run(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        """Call ``fn(comm, *args)`` on every rank; return the results in rank order, or raise the
        first cause.
        """
        return settle(self.outcomes(fn, *args))

    def outcomes(
        self, fn: Callable[..., Any], *args: Any, limit: float | None = None
    ) -> list[Outcome]:
        """Like :meth:`run`, but return how each rank ended and raise nothing.

        A deadlock is decided at once. What never comes back outside of a collective is left behind
        after ``limit`` seconds, and its outcome says where each rank was.
        """
        self._reset()
        ended: list[Outcome | None] = [None] * self.world_size

        def main(rank: int) -> None:
            comm = self.communicator(rank)
            torch.set_grad_enabled(
                True
            )  # as in a new thread, whatever the last rank in this one has left
            try:
                with use(comm):
                    value = fn(comm, *args)
            except BaseException as error:  # noqa: BLE001  (handed to the caller, whatever it is)
                ended[rank] = Outcome(rank, error=error)
                self._leave(rank, error)
            else:
                ended[rank] = Outcome(rank, value)
                self._leave(rank, None)

        crew = self._crew or Crew()
        try:
            shifts = [
                crew.start(
                    f"rank {rank}", functools.partial(contextvars.copy_context().run, main, rank)
                )
                for rank in range(self.world_size)
            ]
            self._wait_for(shifts, limit)
            known = [*ended]
            late = [rank for rank, outcome in enumerate(known) if outcome is None]
            found = [outcome for outcome in known if outcome is not None] + self._give_up(
                late, shifts, limit
            )
        finally:
            if crew is not self._crew:
                crew.close()
        return sorted(found, key=lambda outcome: outcome.rank)

    def _wait_for(self, shifts: Sequence[Shift], limit: float | None) -> None:
        deadline = None if limit is None else time.monotonic() + limit
        try:
            for shift in shifts:
                shift.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except BaseException as error:  # Ctrl-C in the main thread: no rank may wait for ever
            text = f"the world was stopped: {error!r}"
            self._break(lambda rank: PeerLostError(text, rank=rank))
            raise

    def _give_up(
        self, late: list[int], shifts: Sequence[Shift], limit: float | None
    ) -> list[Outcome]:
        """Say where ranks are that have not ended, and end what can be ended."""
        frames = sys._current_frames()
        ended = []
        for rank in late:
            text = f"rank {rank} was still busy after {limit or 0:g} s, the limit of this run, and was left behind"
            error = PeerLostError(text, rank=rank)
            frame = frames.get(shifts[rank].ident)
            if frame is not None:
                stack = traceback.extract_stack(frame)
                begin = next(
                    (place for place, call in enumerate(stack, 1) if call.filename == __file__), 0
                )
                error.add_note(
                    f"rank {rank} was here:\n"
                    + "".join(traceback.format_list(stack[begin:])).rstrip()
                )
            ended.append(Outcome(rank, error=error))
        if late:
            self._break(lambda rank: PeerLostError("the limit of this run is over", rank=rank))
        for rank in late:  # ends a loop of Python code; a call that never returns stays
            shifts[rank].abandon(LeftBehind)
        until = time.monotonic() + _LAST_WORDS
        for rank in late:
            shifts[rank].join(max(0.0, until - time.monotonic()))
        return ended

    def meet(
        self,
        rank: int,
        members: tuple[int, ...],
        kind: tuple[Any, ...],
        sent: list[Tensor],
        call: Call,
    ) -> dict[int, list[Tensor]]:
        """Join this rank's next collective of ``members``; return what every member sent."""
        with self._change:
            if self._broken is not None:
                raise self._broken(rank)
            index = self._counts[rank, members]
            self._counts[rank, members] += 1
            meeting = self._meetings.setdefault((members, index), _Meeting(members))
            meeting.calls[rank], meeting.kinds[rank], meeting.sent[rank] = call, kind, sent
            if meeting.complete:
                del self._meetings[members, index]
                self._judge(meeting)
                for member in members:
                    self._waiting.pop(member, None)
                self._change.notify_all()
            else:
                self._waiting[rank] = meeting
                self._find_stuck()
                self._change.wait_for(lambda: rank not in self._waiting)
            if meeting.error is not None:
                raise meeting.error(rank)
            return meeting.sent

    def _judge(self, meeting: _Meeting) -> None:
        if len(set(meeting.kinds.values())) > 1:
            text = compose(
                "ranks disagree on a collective",
                {rank: str(call) for rank, call in meeting.calls.items()},
                notes=["No data was moved."],
                likely="a condition, a loop length or a shape that differs between ranks.",
                do="make every rank call the same collectives, in the same order, with equal "
                "shapes and dtypes.",
            )
            calls = meeting.calls
            meeting.error = lambda rank: MismatchError(
                text, rank=rank, peers=sorted(calls), site=calls[rank].site
            )

    def _leave(self, rank: int, error: BaseException | None) -> None:
        with self._change:
            self._gone[rank] = reason(error)
            if error is not None:
                self._raised.add(rank)
            self._find_stuck()

    def _find_stuck(self) -> None:
        """End every wait that can no longer be met; called with the lock held after each change."""
        lost = {
            rank
            for meeting in self._waiting.values()
            for rank in meeting.members
            if rank in self._gone
        }
        alive = [rank for rank in range(self.world_size) if rank not in self._gone]
        if not lost and (not self._waiting or any(rank not in self._waiting for rank in alive)):
            return
        waits = {rank: f"waits in {meeting.calls[rank]}" for rank, meeting in self._waiting.items()}
        text, kind = self._verdict(lost, waits)
        peers = sorted(lost or waits)
        sites = {rank: meeting.calls[rank].site for rank, meeting in self._waiting.items()}
        self._break(lambda rank: kind(text, rank=rank, peers=peers, site=sites.get(rank)))

    def _verdict(self, lost: set[int], waits: dict[int, str]) -> tuple[str, type[DistmetricsError]]:
        lines = waits | self._gone
        if raised := lost & self._raised:
            headline = f"{who(raised)} failed and will never answer"
            return compose(
                headline, lines, do=f"mend the failure of {who(raised)} first."
            ), PeerLostError
        if lost:
            headline = f"{who(lost)} {'has' if len(lost) == 1 else 'have'} returned, and others still wait for it"
            likely = "a collective under a condition that only some ranks meet, or loops of different lengths."
        else:
            headline = "deadlock: every rank waits, and no wait can be met"
            likely = "collectives of overlapping groups in a different order on different ranks."
        do = "make every rank of a group call the same collectives, in the same order."
        return compose(headline, lines, likely=likely, do=do), DivergedError

    def _break(self, error: Callable[[int], DistmetricsError]) -> None:
        """End every wait, also in groups that could go on: whom they wait for may call next, and
        hear it then.
        """
        with self._change:
            self._broken = error
            for meeting in self._waiting.values():
                meeting.error = error
            self._waiting.clear()
            self._change.notify_all()


class ThreadCommunicator:
    """One rank's end of a :class:`ThreadWorld`, or of a subgroup of it."""

    device = torch.device("cpu")

    def __init__(self, world: ThreadWorld, rank: int, members: tuple[int, ...]) -> None:
        if rank not in members:
            raise ValueError(f"rank {rank} is no member of the group {members}")
        self._world = world
        self._me = rank
        self._members = members
        self.rank = members.index(rank)
        self.world_size = len(members)
        self.kept: dict[Any, Any] = {}  # by layers above, for as long as this lasts

    def subgroup(self, ranks: Sequence[int]) -> ThreadCommunicator:
        """Return this rank's end of the subgroup ``ranks`` (ranks of this communicator)."""
        return ThreadCommunicator(
            self._world, self._me, tuple(self._members[rank] for rank in sorted(ranks))
        )

    def _meet(self, kind: tuple[Any, ...], sent: list[Tensor], op: str) -> list[list[Tensor]]:
        x = sent[0] if sent else None
        copies = [part.detach().clone(memory_format=torch.contiguous_format) for part in sent]
        call = current_call(op, x)
        met = self._world.meet(self._me, self._members, (*kind, call.exact), copies, call)
        return [met[member] for member in self._members]

    def all_gather(
        self, x: Tensor, meanwhile: Meanwhile | None = None, into: list[Tensor] | None = None
    ) -> list[Tensor]:
        """Every rank's ``x``, in rank order; ``into``: tensors that receive them."""
        if meanwhile is not None:
            meanwhile()  # before: the others' threads cannot run while this one works
        met = self._meet(("all_gather", x.dtype, x.shape), [x], "all_gather")
        if into is None:
            return [row.clone() for (row,) in met]
        return [place.copy_(row) for place, (row,) in zip(into, met, strict=True)]

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Elementwise ``op`` over all ranks, folded in rank order."""
        met = self._meet(("all_reduce", op, x.dtype, x.shape), [x], f"all_reduce {op}")
        return fold([row for (row,) in met], op)

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Give ``parts[r]`` to rank r; return what each rank gave to this one."""
        check_parts(parts, self.world_size)
        kind = ("all_to_all", len(parts), *((part.dtype, part.shape) for part in parts))
        met = self._meet(kind, list(parts), "all_to_all")
        return [sent[self.rank].clone() for sent in met]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Rank ``src``'s ``x``."""
        check_src(src, self.world_size)
        met = self._meet(("broadcast", src, x.dtype, x.shape), [x], f"broadcast from rank {src}")
        return met[src][0].clone()

    def barrier(self) -> None:
        """Wait for every rank."""
        self._meet(("barrier",), [], "barrier")


def is_of_threads(comm: object) -> bool:
    """Whether a communicator is one of a world of threads, or passes its calls on to one."""
    while comm is not None and not isinstance(comm, ThreadCommunicator):
        comm = getattr(comm, "inner", None)
    return comm is not None
