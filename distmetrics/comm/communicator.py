"""The contract of a communicator, and which one is current.

A communicator moves equal shapes in rank order and never in place. Everything above it (trees,
uneven sizes, agreement, metrics) is built from five collectives, so a new transport is one small
class. What else a communicator can do has a default here.
"""

from __future__ import annotations

import functools
import threading
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.comm.verdict import Verdict, left_a_call
from distmetrics.errors import (
    ConfigurationError,
    DistmetricsError,
    InputTypeError,
    LayoutError,
    Site,
)

P = ParamSpec("P")
R = TypeVar("R")
_KEPT = 50  # calls that an error lists
Op = Literal["sum", "prod", "max", "min"]
_PAIRWISE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}


class CallState:
    """The calls that one rank has made on one transport."""

    def __init__(self) -> None:
        self.calls = 0  # of the user: each has one number, however many rounds it takes
        self.count = 0  # rounds of ours that have begun
        self.past = 0  # hash of what the other ranks must have done as well, besides these calls
        # Batches and checksums of passes over streams, to be compared with the others'.
        self.reads: dict[tuple[int, int], tuple[int, int]] = {}
        # Each rank's line of the last calls, since ranks were last at one line.
        self.uneven_lines: list[list[Site | None]] = []
        self.left: deque[str] = deque(maxlen=_KEPT)  # calls left before data were exchanged
        self.direct_calls: deque[str] = deque(maxlen=_KEPT)  # that no function of ours made
        self.verdict: Verdict | None = None  # why every later call is refused
        self.refusal: Verdict | None = None  # the same, once the call under way is over
        self.lock = threading.Lock()
        self.holder: Any = None  # the call that is under way, set under the lock

    def note(self, kept: deque[str], call: Call) -> None:
        """Add what no header compares to what ranks must share, and to what errors list."""
        self.past = zlib.crc32(f"{call.op} {call.detail}".encode(), self.past)
        kept.append(str(call))


class Tasks:
    """Calls in the background of a rank: who decides on deadlocks must know of them."""

    def begin(self, thread: threading.Thread) -> None:
        """Note that this thread, of the background, is about to make a call."""

    def end(self) -> None:
        """Note that the call of the thread that runs is over."""

    def wait(self, over: threading.Event) -> None:
        """Wait until something in the background is over."""
        over.wait()


class Communicator:
    """One rank's end of a world: equal shapes and dtypes on all ranks, rank order, never in place.

    A transport of your own defines the five collectives and these attributes. Where a rank cannot
    be reached, a collective raises :class:`~distmetrics.errors.PeerLostError`. What a communicator
    does not define is passed on to ``inner``; without one it is a
    :class:`~distmetrics.errors.ConfigurationError`.

    Attributes:
        rank: this rank, from 0.
        world_size: number of ranks.
        device: where the transport needs its tensors; callers move them there and back.
        inner: the communicator that this one passes its calls on to, or None.

    >>> run(2, lambda comm: comm.all_gather(torch.tensor(comm.rank)))[0]
    [tensor(0), tensor(1)]
    """

    rank: int
    world_size: int
    device: torch.device
    inner: Communicator | None = None
    tasks = Tasks()  # the calls that this rank makes in its background, as far as is known

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Return every rank's ``x``, in rank order."""
        return self._inside("all_gather").all_gather(x)

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Return the elementwise ``op`` over all ranks; the same bits on every rank."""
        return self._inside("all_reduce").all_reduce(x, op)

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Give ``parts[r]`` to rank r; return what each rank gave to this one, in rank order."""
        return self._inside("all_to_all").all_to_all(parts)

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Return rank ``src``'s ``x``."""
        return self._inside("broadcast").broadcast(x, src)

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._inside("barrier").barrier()

    # What a transport may know or do besides.

    @property
    def transport(self) -> Communicator:
        """The innermost communicator, through which all calls pass."""
        return self if self.inner is None else self.inner.transport

    @functools.cached_property
    def members(self) -> Sequence[int]:
        """Which ranks of the job these are."""
        return range(self.world_size) if self.inner is None else self.inner.members

    @functools.cached_property
    def state(self) -> CallState:
        """The calls that this rank has made on the transport."""
        return CallState() if self.inner is None else self.inner.state

    def subgroup(self, ranks: Sequence[int]) -> Communicator:
        """Return a communicator of some of the ranks; each of them must ask for it."""
        return self._inside("subgroups, which a layout needs").subgroup(ranks)

    def background(self) -> Communicator:
        """Return a communicator for a second thread of each rank; every rank must ask for it."""
        return self if self.world_size == 1 else self._inside("background").background()

    def _inside(self, lacks: str) -> Communicator:
        if self.inner is None:
            raise ConfigurationError(
                f"a {type(self).__name__} has no {lacks}",
                do="pass comm= of threads or of a process group.",
            )
        return self.inner

    def break_off(self, verdict: Verdict, *, at_once: bool) -> None:
        """Tell the others, at once or unless this rank ends soon, that it makes no call here."""

    def report(self, error: DistmetricsError) -> None:
        """Write this rank's report, where one is wanted: a call raises an error."""

    # What a layout changes: ranks that hold the same samples, and ranks without values.

    hands_over = False  # whether some ranks are given the result of others
    wants_proof = False  # whether a call must show what this rank would send: see witness

    @functools.cached_property
    def whole(self) -> Communicator:
        """The communicator of all ranks, of which those of a layout are the shards."""
        return self

    def around(self, make: Callable[[], R]) -> R:
        """Make a call on the ranks that have values, and give its result to the others."""
        return make()

    def witness(self, call: bytes, tensors: Mapping[str, Tensor]) -> None:
        """Note what this rank would send, to compare ranks that hold the same samples."""

    def axes_of(self, job_ranks: Sequence[int]) -> Mapping[str, str | int]:
        """Return the axes along which some ranks of the job lie, and their roles."""
        return {}

    def through(self, whole: Communicator) -> Communicator:
        """Return the same communicator over another one of the same ranks."""
        return whole

    def duplicates(self, ranks: Sequence[int]) -> LayoutError | None:
        """Return the error for ranks that hold the same data, where a layout says otherwise."""
        return None


class PassingCommunicator(Communicator):
    """Base of communicators of the same ranks as another one, ``inner``."""

    inner: Communicator

    def __init__(self, inner: Communicator) -> None:
        self.inner = inner
        self.rank, self.world_size, self.device = inner.rank, inner.world_size, inner.device


class SingleCommunicator(Communicator):
    """The communicator of a world of one, such as an ordinary script.

    >>> SingleCommunicator().all_gather(torch.ones(2))
    [tensor([1., 1.])]
    """

    rank = 0
    world_size = 1
    device = torch.device("cpu")

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Return a copy of ``x`` in a list."""
        return [x.detach().clone()]

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Return a copy of ``x``: one rank's sum, product, maximum and minimum."""
        return x.detach().clone()

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return a copy of the only part in a list."""
        check_parts(parts, 1)
        return [parts[0].detach().clone()]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Return a copy of ``x``; the only valid source is rank 0."""
        check_src(src, 1)
        return x.detach().clone()

    def barrier(self) -> None:
        """Return at once: there is nobody to wait for."""


# Which communicator is current

_used: ContextVar[Communicator | None] = ContextVar("distmetrics_communicator", default=None)
_single = SingleCommunicator()
_find_job: Callable[[], Communicator | None] = _used.get  # see find_job_by


def current() -> Communicator:
    """Return the current communicator.

    It is that of the nearest :func:`use`, else that of ``torch.distributed``'s default group, else
    a world of one.

    >>> current().world_size
    1
    """
    return _used.get() or _find_job() or _single


def find_job_by(find: Callable[[], Communicator | None]) -> None:
    """Let the transport of jobs find the communicator of the job, if there is one."""
    global _find_job
    _find_job = find


def used() -> Communicator | None:
    """Return the communicator of the nearest :func:`use`, if there is one."""
    return _used.get()


def chosen(comm: Communicator | None) -> Communicator:
    """Return ``comm`` if a caller gave one, else the current communicator."""
    if comm is None:
        return current()
    if not isinstance(comm, Communicator):
        raise InputTypeError(
            f"comm= must be a communicator, got a {type(comm).__name__}",
            do="for a process group pass distmetrics.GroupCommunicator(group).",
        )
    return comm


@contextmanager
def use(comm: Communicator) -> Iterator[Communicator]:
    """Make ``comm`` the current communicator inside the block, for this thread or task alone.

    Args:
        comm: the communicator, which is also what the block gets.

    >>> with use(SingleCommunicator()) as comm:
    ...     current() is comm
    True
    """
    token = _used.set(comm)
    try:
        yield comm
    finally:
        _used.reset(token)


# What the collectives have in common


class Finished:
    """The handle of a call that is over before its caller sees it."""

    def wait(self, timeout: object = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True


def check_parts(parts: Sequence[Tensor], world_size: int) -> None:
    """Raise ValueError unless there is one part of an all_to_all for each rank, all alike."""
    if len(parts) != world_size or len({(part.dtype, part.shape) for part in parts}) > 1:
        kinds = ", ".join(brief(part.dtype, part.shape) for part in parts)
        raise ValueError(f"all_to_all needs {world_size} parts alike, got {kinds}")


def check_src(src: int, world_size: int) -> None:
    """Raise ValueError if the source is not a rank."""
    if not 0 <= src < world_size:
        raise ValueError(f"broadcast from rank {src} in a world of {world_size}")


def fold(rows: Sequence[Tensor], op: Op) -> Tensor:
    """Reduce equal-shaped tensors in the order given, so that all ranks get the same bits."""
    # torch.sum(dim=0) may group terms differently on another processor.
    return rows[0].clone() if len(rows) == 1 else functools.reduce(_PAIRWISE[op], rows)


def gather_padded(comm: Communicator, data: Tensor, longest: int) -> list[Tensor]:
    """Gather runs of bytes, padded to the longest and to 16, so that any dtype can view a row."""
    padded = torch.zeros(-(-longest // 16) * 16, dtype=torch.uint8, device=comm.device)
    used_bytes = min(data.numel(), longest)
    padded[:used_bytes] = data[:used_bytes]
    return comm.all_gather(padded)


# How errors and reports name a call


class Call(NamedTuple):
    """A call in the user's terms: ``all_gather "val/f1" float32[10]``, and where it is made."""

    op: str
    detail: str = ""
    site: Site | None = None
    exact: tuple[Hashable, ...] = ()  # what a strict world compares, such as a gather's destination

    def __str__(self) -> str:
        text = f"{self.op} {self.detail}".strip()
        return f"{text}  {self.site or ''}".rstrip()


class _ThreadCall(threading.local):
    call: Call | None = None  # the user's, that this thread makes


_of_thread = _ThreadCall()


@contextmanager
def in_call(call: Call) -> Iterator[None]:
    """Name the transport's calls inside the block by the user's call that needs them."""
    before = name_calls(call)
    try:
        yield
    finally:
        name_calls(before)


def name_calls(call: Call | None) -> Call | None:
    """Name the transport's calls of this thread from here on; return how they were named before."""
    before, _of_thread.call = _of_thread.call, call
    return before


def call_under_way() -> Call | None:
    """Return the user's call that needs the transport's calls of this moment, if one was named."""
    return _of_thread.call


def current_call(op: str, x: Tensor | None = None) -> Call:
    """Return the user's call that is under way, or describe a direct use of the transport."""
    return _of_thread.call or Call(op, "" if x is None else brief(x.dtype, x.shape), call_site())


@contextmanager
def numbered(comm: Communicator) -> Iterator[None]:
    """Give the ranks of an error of ours that the block raises the job's numbers."""
    try:
        yield
    except DistmetricsError as error:
        error.call_ranks(comm.members)
        raise


def brief(dtype: torch.dtype, shape: Sequence[int]) -> str:
    """Return dtype and shape in short.

    >>> brief(torch.float32, (2, 3))
    'float32[2, 3]'
    """
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


# One call at a time on a transport, and none after a call that an exception has ended. Calls of two
# threads on one communicator must not overlap: the ranks could take them in another order. An
# exception that only this rank raises, such as that of a signal's handler, leaves the other ranks
# in the call, and nobody knows whether this rank will repeat it or leave it out. So where data were
# exchanged the communicator is broken from then on, and the other ranks are told. Where none were,
# the next call compares what all ranks have left.


class CallLock:
    """One call of this thread, and the transports that it has taken."""

    def __init__(self) -> None:
        self.call: Call | None = None  # None before the first exchange of data
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
                state.verdict, state.refusal = state.refusal, None
                comm.transport.break_off(state.verdict, at_once=True)

    def fail(self, error: BaseException, comm: Communicator) -> None:
        """Release after an error, which breaks the transports unless all ranks raise it."""
        if not (self.exchanged or isinstance(error, DistmetricsError)):
            if self.call is None:
                note_left(comm, error)
            else:
                for taken in self.taken:
                    break_after(taken, self.call, type(error).__name__)
        self.release()


class _ThreadLock(threading.local):
    lock: CallLock | None = None  # of the call that this thread is in


_locked_by = _ThreadLock()


def one_call(fn: Callable[P, R]) -> Callable[P, R]:
    """Make a function, which has the argument ``comm=``, one call of this thread.

    Where the thread is in a call already, this is a part of it.
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> R:
        outer = _locked_by.lock
        try:
            comm = chosen(kwargs.get("comm"))
            if outer is None:
                _locked_by.lock = CallLock()
            result = comm.around(functools.partial(fn, *args, **kwargs))
            if outer is None:
                this_call().release()
        except BaseException as error:
            comm = chosen(kwargs.get("comm"))
            if isinstance(error, DistmetricsError):
                error.call_ranks(comm.members)
                comm.transport.report(error)
            if outer is None:
                (_locked_by.lock or CallLock()).fail(error, comm)
            raise
        finally:
            _locked_by.lock = outer  # calls no function, so no interrupt strikes before it
        return result

    return call


def this_call() -> CallLock:
    """Return the call that this thread is in."""
    lock = _locked_by.lock
    assert lock is not None, "exchanges data outside of one_call"
    return lock


def take(comm: Communicator, call: Call) -> None:
    """Take a transport, on which the call of this thread now exchanges data, if it may."""
    lock, state = this_call(), comm.state
    if comm.world_size == 1:
        return
    if state.holder is not lock:
        with state.lock:
            holder = state.holder
            if holder is not None and holder.thread != lock.thread:
                raise _refused(comm, holder.call)
            state.holder = lock
        state.calls += 1
        lock.taken.append(comm)
        # An earlier call of this thread: two exceptions at once have ended it.
        if holder is not None:
            break_after(comm, call, "an exception")
    lock.call, lock.exchanged = call, False
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
    left = Call(f"left a call by {type(error).__name__}", site=call_site())
    comm.state.note(comm.state.left, left)


def break_after(comm: Communicator, call: Call, name: str) -> None:
    """Break a communicator on which an exception of this rank alone has ended a call."""
    if comm.state.verdict is None:
        rank = comm.members[comm.rank]
        comm.state.verdict = left_a_call(
            (rank,),
            f"rank {rank} left a call by {name} and went on, so the ranks are out of step",
            {rank: f"left {call.op} by {name}  {call_site() or call.site or ''}".rstrip()},
        )
        comm.transport.break_off(comm.state.verdict, at_once=False)


def _refused(comm: Communicator, other: Call | None) -> DistmetricsError:
    """Return the error for a second thread; later calls are refused too, on all ranks."""
    here, rank = call_site(), comm.members[comm.rank]
    there = (other and other.site) or "an unknown line"
    comm.state.refusal = Verdict(
        "diverged",
        f"two threads of rank {rank} were in calls of one communicator at the same time, so the "
        "ranks may be out of step",
        (rank,),
        {rank: f"refused a call  {here or ''}".rstrip()},
        likely="calls in threads that do not wait for each other: the ranks may take them in "
        "another order, and nothing would tell.",
        do="let one thread make all calls, or give each thread a communicator of its own: "
        "GroupCommunicator(torch.distributed.new_group()).",
    )
    refused = comm.state.refusal.but(
        kind="configuration",
        what=f"two threads of rank {rank} are in calls of one communicator at the same time: one "
        f"at {there}, and this one at {here}",
        per_rank={},
        notes=("This one was not made; the next call on this communicator raises on every rank.",),
    )
    return refused.error(rank, here)
