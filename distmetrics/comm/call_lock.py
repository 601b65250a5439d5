"""One call at a time on a transport, and none after a call that an exception has ended.

Calls of two threads on one communicator must not overlap: the ranks could take them in another
order. An exception that only this rank raises, such as that of a signal's handler, leaves the other
ranks in the call. Nobody knows whether the caller will repeat the call or leave it out. So where
data were exchanged the communicator is broken from then on: it refuses every later call of this
rank, and the other ranks are told. Where none were, the next call compares what all ranks have
left.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import Token
from typing import Any, ParamSpec, TypeVar

from distmetrics.call_site import call_site
from distmetrics.comm.communicator import Call, Communicator, chosen, name_calls, unname_calls
from distmetrics.comm.verdict import Verdict, left_a_call
from distmetrics.errors import ConfigurationError, DistmetricsError

P = ParamSpec("P")
R = TypeVar("R")
_of_thread = threading.local()


class CallLock:
    """One call of this thread, and the transports that it has taken.

    Attributes:
        call: that exchanges data; None before the first exchange.
        exchanged: whether the last exchange is over.
        takes: how often the call has begun to exchange data.
        is_over: whether all that follows is the caller's own code.

    A transport holds it weakly: one that is gone and is not over was ended by two exceptions at
    once.
    """

    __slots__ = (
        "__weakref__",
        "_taken",
        "_token",
        "call",
        "exchanged",
        "is_over",
        "takes",
        "thread",
    )

    def __init__(self) -> None:
        self.is_over = self.exchanged = False
        self.takes = 0
        self.thread = threading.get_ident()
        self._taken: list[Communicator] = []
        self.call: Call | None = None  # that exchanges data now
        self._token: Token[Call | None] | None = name_calls(None)
        _of_thread.lock = weakref.ref(self)

    def take(self, comm: Communicator, call: Call) -> None:
        """Take a transport, on which the call now exchanges data.

        Raises:
            ConfigurationError: another thread is in a call; or this one is, and a signal's handler
                makes another.
            DivergedError, MismatchError, PeerLostError: the communicator is broken.
        """
        state = comm.state
        if all(state is not taken.state for taken in self._taken):
            with state.lock:
                holder = None if state.holder is None else state.holder()
                if holder is not None and holder is not self and not holder.is_over:
                    raise _refused(comm, holder)
                left = state.holder is not None and holder is None
                state.holder = weakref.ref(self)
            self._taken.append(comm)
            if left and state.verdict is None:
                _break(comm, _interrupted(comm, call, "an exception"))
        self.call, self.exchanged = call, False
        self.takes += 1
        name_calls(call)
        if state.verdict is not None:
            comm.transport.break_off(state.verdict, at_once=True)
            raise state.verdict.error(comm.members[comm.rank], call.site)

    def release(self) -> None:
        """Let other threads make calls, once, before ``is_over`` is set."""
        if self.is_over:
            return
        token, self._token = self._token, None
        if token is not None:
            unname_calls(token)
        for comm in self._taken:
            comm.state.holder = None
            if comm.state.refusal is not None:
                _break(comm, comm.state.refusal, at_once=True)

    def fail(self, error: BaseException, comm: Communicator) -> None:
        """Break the transports that the call has taken, unless all ranks raise the error.

        Args:
            error: that ends the call.
            comm: on which it was to be made.
        """
        alike = self.is_over or self.exchanged or isinstance(error, DistmetricsError)
        if not alike and self.call is None:
            comm.state.note_left(type(error).__name__, call_site())
        for taken in self._taken if not alike else ():
            if taken.state.verdict is None and self.call is not None:
                _break(taken, _interrupted(taken, self.call, type(error).__name__))
        self.release()
        self.is_over = True


def one_call(fn: Callable[P, R]) -> Callable[P, R]:
    """Make a function, which has the argument ``comm=``, one call of this thread.

    Over a layout the ranks that have values make it. Where the thread is in a call already, this is
    a part of it.
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> R:
        lock = None
        try:
            comm = chosen(kwargs.get("comm"))
            if _lock_of_thread() is None:
                lock = CallLock()
            if comm.is_layout:
                result = comm.around(functools.partial(fn, *args, **kwargs))
            else:
                result = fn(*args, **kwargs)
            if lock is not None:
                lock.release()
                lock.is_over = True  # no function is called from here on: no interrupt strikes
        except BaseException as error:
            comm = chosen(kwargs.get("comm"))
            if isinstance(error, DistmetricsError):
                error.call_ranks(comm.members)
                comm.report(error)
            if lock is None and _lock_of_thread() is None:  # interrupted before it had one
                lock = CallLock()
            if lock is not None:
                lock.fail(error, comm)
            raise
        return result

    return call


def take(comm: Communicator, call: Call) -> None:
    """Take a transport for the call of this thread; see :meth:`CallLock.take`."""
    lock = _lock_of_thread()
    if lock is None:
        raise RuntimeError(f"{call}: exchanges data outside of one_call")
    if comm.world_size > 1:
        lock.take(comm, call)


def exchanges_over() -> None:
    """Note that the call of this thread exchanges no more data: errors from here on are its own."""
    lock = _lock_of_thread()
    if lock is not None:
        lock.exchanged = True
        name_calls(None)


def taken_so_far() -> int:
    """Return how often the call of this thread has begun to exchange data."""
    lock = _lock_of_thread()
    return 0 if lock is None else lock.takes


def check_own(error: Exception, comm: Communicator, takes: int) -> None:
    """Raise an error that ends a part of a call, if only this rank may raise it.

    Args:
        error: that ended the part.
        comm: over which it was made.
        takes: :func:`taken_so_far` before it.
    """
    lock = _lock_of_thread()
    if lock is None or lock.exchanged or isinstance(error, DistmetricsError):
        return
    if lock.takes > takes:
        raise error
    comm.state.note_left(type(error).__name__, call_site())


def break_after(error: BaseException, comm: Communicator, call: Call) -> None:
    """Break a communicator whose direct call was ended by an error of this rank alone."""
    if _lock_of_thread() is None and comm.state.verdict is None:
        _break(comm, _interrupted(comm, call, type(error).__name__))


def _lock_of_thread() -> CallLock | None:
    """Return the call that this thread is in."""
    held: weakref.ref[CallLock] | None = getattr(_of_thread, "lock", None)
    lock = None if held is None else held()
    return None if lock is None or lock.is_over else lock


def _break(comm: Communicator, verdict: Verdict, *, at_once: bool = False) -> None:
    comm.state.verdict, comm.state.refusal = verdict, None
    comm.transport.break_off(verdict, at_once=at_once)


def _interrupted(comm: Communicator, call: Call, name: str) -> Verdict:
    """Return the verdict for a call that an exception of this rank alone has ended."""
    rank = comm.members[comm.rank]
    return left_a_call(
        (rank,),
        f"rank {rank} left a call by {name} and went on, so the ranks are out of step",
        {rank: f"left {call.op} by {name}  {call_site() or call.site or ''}".rstrip()},
    )


def _refused(comm: Communicator, holder: CallLock) -> DistmetricsError:
    """Return the error for a call that begins while another thread is in one.

    Each rank may have refused another thread, so every later call is refused on all ranks.
    """
    frame = sys._current_frames().get(holder.thread)
    here, there = call_site(), None if frame is None else call_site(frame)
    rank = comm.members[comm.rank]
    error = ConfigurationError(
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
    error.is_of_job = True
    comm.state.refusal = Verdict(
        "diverged",
        f"two threads of rank {rank} were in calls of one communicator at the same time, so the "
        "ranks may be out of step",
        (rank,),
        {rank: f"refused a call  {here or ''}".rstrip()},
        likely=error.likely,
        do=error.do,
        notes=("Every later call on this communicator raises at once.",),
    )
    return error
