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
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from distmetrics.call_site import call_site
from distmetrics.comm.communicator import Call, Communicator, chosen, name_calls
from distmetrics.comm.verdict import Verdict, left_a_call
from distmetrics.errors import ConfigurationError, DistmetricsError

P = ParamSpec("P")
R = TypeVar("R")


class CallLock:
    """One call of this thread, and the transports that it has taken."""

    def __init__(self) -> None:
        self.call: Call | None = None  # None before the first exchange of data
        self.takes = 0  # how often it has begun to exchange data
        self.exchanged = False  # the last exchange is over: errors from here on are its own
        self.thread = threading.get_ident()
        self.taken: list[Communicator] = []

    def release(self) -> None:
        """Let other threads make calls."""
        name_calls(None)
        for comm in self.taken:
            state = comm.state
            if state.holder is self:
                state.holder = None
            if state.refusal is not None:
                _break(comm, state.refusal, at_once=True)

    def fail(self, error: BaseException, comm: Communicator) -> None:
        """Release after an error, which breaks the transports unless all ranks raise it."""
        if not (self.exchanged or isinstance(error, DistmetricsError)):
            if self.call is None:
                note_left(comm, error)
            else:
                for taken in self.taken:
                    _break_after(taken, self.call, type(error).__name__)
        self.release()


class _ThreadLock(threading.local):
    lock: CallLock | None = None  # of the call that this thread is in


_of_thread = _ThreadLock()


def one_call(fn: Callable[P, R]) -> Callable[P, R]:
    """Make a function, which has the argument ``comm=``, one call of this thread.

    Where the thread is in a call already, this is a part of it.
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> R:
        is_part, lock = _of_thread.lock is not None, None
        try:
            comm = chosen(kwargs.get("comm"))
            if not is_part:
                lock = _of_thread.lock = CallLock()
            result = comm.around(functools.partial(fn, *args, **kwargs))
            if lock is not None:
                lock.release()
        except BaseException as error:
            comm = chosen(kwargs.get("comm"))
            if isinstance(error, DistmetricsError):
                error.call_ranks(comm.members)
                comm.report(error)
            if not is_part:
                (lock or CallLock()).fail(error, comm)
            raise
        finally:
            if not is_part:
                _of_thread.lock = None  # calls no function, so no interrupt strikes before it
        return result

    return call


def this_call() -> CallLock:
    """Return the call that this thread is in."""
    lock = _of_thread.lock
    assert lock is not None, "exchanges data outside of one_call"
    return lock


def take(comm: Communicator, call: Call) -> None:
    """Take a transport, on which the call of this thread now exchanges data, if it may."""
    lock, state = this_call(), comm.state
    if comm.world_size == 1:
        return
    if all(state is not taken.state for taken in lock.taken):
        with state.lock:
            holder = state.holder
            if holder is not None and holder.thread != lock.thread:
                raise _refused(comm, holder.call)
            state.holder = lock
        lock.taken.append(comm)
        # An earlier call of this thread: two exceptions at once have ended it.
        if holder is not None:
            _break_after(comm, call, "an exception")
    lock.call, lock.exchanged = call, False
    lock.takes += 1
    name_calls(call)
    if state.verdict is not None:
        comm.transport.break_off(state.verdict, at_once=True)
        raise state.verdict.error(comm.members[comm.rank], call.site)


def exchanges_over() -> None:
    """Note that the call of this thread exchanges no more data."""
    this_call().exchanged = True
    name_calls(None)


def note_left(comm: Communicator, error: BaseException) -> None:
    """Note that an error ended a call of this rank before it exchanged data."""
    state = comm.state
    state.note(state.left, f"left a call by {type(error).__name__}", call_site())


def break_after(error: BaseException, comm: Communicator, call: Call) -> None:
    """Break a communicator whose direct call was ended by an error of this rank alone."""
    if _of_thread.lock is None:
        _break_after(comm, call, type(error).__name__)


def _break_after(comm: Communicator, call: Call, name: str) -> None:
    if comm.state.verdict is None:
        rank = comm.members[comm.rank]
        verdict = left_a_call(
            (rank,),
            f"rank {rank} left a call by {name} and went on, so the ranks are out of step",
            {rank: f"left {call.op} by {name}  {call_site() or call.site or ''}".rstrip()},
        )
        _break(comm, verdict, at_once=False)


def _break(comm: Communicator, verdict: Verdict, *, at_once: bool) -> None:
    comm.state.verdict, comm.state.refusal = verdict, None
    comm.transport.break_off(verdict, at_once=at_once)


def _refused(comm: Communicator, other: Call | None) -> DistmetricsError:
    """Return the error for a second thread; later calls are refused too, on all ranks."""
    here = call_site()
    there = (other and other.site) or "an unknown line"
    rank = comm.members[comm.rank]
    what = "in calls of one communicator at the same time"
    error = ConfigurationError(
        f"two threads of rank {rank} are {what}: one at {there}, and this one at {here}",
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
        f"two threads of rank {rank} were {what}, so the ranks may be out of step",
        (rank,),
        {rank: f"refused a call  {here or ''}".rstrip()},
        likely=error.likely,
        do=error.do,
    )
    return error
