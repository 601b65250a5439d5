"""One call at a time on a communicator, from its first statement until its last round.

What an exception ends on the way is noted, so that the next call can tell the other ranks. Calls of
two threads on one communicator must not overlap: the ranks could take them in another order.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from distmetrics.comm.base import Call, Communicator, in_call, innermost, job_ranks, numbered
from distmetrics.comm.current import chosen
from distmetrics.comm.sites import call_site
from distmetrics.errors import ConfigurationError, DistmetricsError
from distmetrics.liveness.call_record import CallRecord

P = ParamSpec("P")
R = TypeVar("R")
_of_others: weakref.WeakKeyDictionary[Any, CallRecord] = weakref.WeakKeyDictionary()
_local = threading.local()


def record_of(comm: Communicator) -> CallRecord:
    """Return what this rank has done on a communicator, or on the one that it passes calls on to.

    A transport of the user's that keeps no record gets one here; which of its rounds were sent
    before an interrupt, nobody knows then.
    """
    inner = innermost(comm)
    record: CallRecord | None = getattr(inner, "record", None)
    return _of_others.setdefault(inner, CallRecord()) if record is None else record


class Turn:
    """One call of this thread; it is over once its last round is.

    Weakly held: one that is gone and is not over was ended by two exceptions at once.

    Attributes:
        thread: that makes the call.
        is_making: whether its rounds are under way.
        is_over: whether all that follows is the caller's own code.
    """

    __slots__ = ("__weakref__", "_records", "is_making", "is_over", "thread")

    def __init__(self) -> None:
        self.is_making = self.is_over = False
        self.thread = threading.get_ident()
        self._records: list[tuple[CallRecord, int]] = []  # and its count before
        _local.turn = weakref.ref(self)

    def take(self, comm: Communicator) -> CallRecord:
        """Return the record of a communicator that no other thread may use until this call is over.

        Raises:
            ConfigurationError: another thread is in a call; or this one is, and a signal's handler
                makes another.
        """
        record = record_of(comm)
        # No generator: Python drops an exception that strikes while one is closed.
        if comm.world_size == 1 or record in [taken for taken, _ in self._records]:
            return record
        with record.lock:
            other = None if record.turn is None else record.turn()
            if record.turn is not None and other is None:
                record.note_interrupt("an exception", None)
            if other is not None and other is not self and not other.is_over:
                raise _refusal(comm, record, other)
            record.turn = weakref.ref(self)
        self._records.append((record, record.calls))
        return record

    def release(self) -> None:
        """Let other threads make calls, once, before ``is_over`` is set."""
        if not self.is_over:
            for record, _ in self._records:
                record.turn = None

    def fail(self, error: BaseException, comm: Communicator | None) -> None:
        """Note that an exception ends the call, unless all ranks raise it; ``comm``: as passed."""
        if not self.is_over and not isinstance(error, DistmetricsError):
            for record, calls in self._records or [_not_taken(comm)]:
                record.calls = max(record.calls, calls + 1)  # the others are in it
                record.note_interrupt(type(error).__name__, call_site())
        self.release()
        self.is_over = True


def as_one_call(fn: Callable[P, R]) -> Callable[P, R]:
    """Make a function, which has the argument ``comm=``, one call of this thread.

    Over a layout it is made by the ranks that have values alone.
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> R:
        return over_layout(chosen(kwargs.get("comm")), functools.partial(fn, *args, **kwargs))

    return in_turn(call)


def over_layout(comm: Communicator, make: Callable[[], R]) -> R:
    """Make a call as the layout says, where the communicator is one.

    Raises:
        DistmetricsError: of the call; its ranks are the job's.
    """

    def named() -> R:
        with numbered(comm):
            return make()

    around: Callable[[Callable[[], R]], R] | None = getattr(comm, "around", None)
    return named() if around is None else around(named)


def in_turn(fn: Callable[P, R]) -> Callable[P, R]:
    """Make a function, which has the argument ``comm=``, one call of this thread.

    An interrupt that strikes before the first statement here is one of the caller's own code.
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> R:
        turn = None
        try:
            turn = _turn_of_thread()
            if turn is None:
                turn = Turn()
                turn.take(chosen(kwargs.get("comm")))
            result = fn(*args, **kwargs)
            turn.release()
            turn.is_over = True  # calls no function: no interrupt strikes between here and the end
        except BaseException as error:
            (turn or Turn()).fail(error, kwargs.get("comm"))
            raise
        return result

    return call


def in_one_call(comm: Communicator, call: Callable[[], Call], rounds: Callable[[], R]) -> R:
    """Make the rounds of a call, or some of them, where it is under way already.

    What an interrupt has left of the call before is made first.

    Args:
        comm: who talks.
        call: returns how reports name the call.
        rounds: makes the rounds, from data that nobody changes; may be called again.

    Raises:
        DistmetricsError: the communicator is broken.
    """
    turn = _turn_of_thread()
    if turn is None:
        return _alone(call, rounds, comm=comm)
    if turn.is_making:
        return rounds()
    record = turn.take(comm)
    turn.is_making = True
    try:
        record.finish()
        named = call()
        if record.verdict is not None:
            raise record.verdict.error(job_ranks(comm)[comm.rank], named.site)

        def named_rounds() -> R:
            with in_call(named):
                return rounds()

        return record.make(named_rounds)
    finally:
        turn.is_making = False


@as_one_call
def _alone(call: Callable[[], Call], rounds: Callable[[], R], *, comm: Communicator) -> R:
    return in_one_call(comm, call, rounds)


def _not_taken(comm: Communicator | None) -> tuple[CallRecord, int]:
    record = record_of(chosen(comm))
    return record, record.calls


def _turn_of_thread() -> Turn | None:
    """Return the call that this thread is in."""
    held: weakref.ref[Turn] | None = getattr(_local, "turn", None)
    turn = None if held is None else held()
    return None if turn is None or turn.is_over else turn


def _refusal(comm: Communicator, record: CallRecord, other: Turn) -> DistmetricsError:
    """Return the error for a call that begins while another thread is in one, and note it."""
    frame = sys._current_frames().get(other.thread)
    here, there = call_site(), None if frame is None else call_site(frame)
    rank = job_ranks(comm)[comm.rank]
    # Each rank may have refused another thread.
    record.note_interrupt("ConfigurationError", here, only_on=comm.rank)
    return ConfigurationError(
        f"two threads of rank {rank} are in calls of one communicator at the same time: one "
        f"at {there or 'an unknown line'}, and this one at {here or 'an unknown line'}",
        notes=["This one was not made; the next call on this communicator raises on every rank."],
        likely="calls in threads that do not wait for each other: the ranks may take them in "
        "another order, and nothing would tell.",
        do="let one thread make all calls, or give each thread a communicator of its own: "
        "GroupCommunicator(torch.distributed.new_group()).",
        rank=rank,
        peers=[rank],
        site=here,
    )
