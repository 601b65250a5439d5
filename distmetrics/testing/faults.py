"""Faults to inject: ways for one rank of a world to fail, each at one place and once.

A place, ``at``, is ``"update"`` or ``"compute"`` (the metric's own method), ``"manifest"`` or
``"data"`` (the first or second round of a sync), the name of a collective (``"all_reduce"``), or a
number: 1 is the rank's first collective. Over a layout, ranks are those of its whole mesh, and the
collectives that make it do not count. Functions such as :func:`kill` return a :class:`Fault`.
"""

import contextlib
import functools
import multiprocessing
import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor

from distmetrics.comm.communicator import (
    Call,
    CallState,
    Communicator,
    call_under_way,
    use,
)
from distmetrics.comm.threads import ThreadCommunicator
from distmetrics.comm.verdict import Outcome
from distmetrics.errors import ConfigurationError, InputError, PeerLostError
from distmetrics.testing.recording import InterceptingCommunicator
from distmetrics.tree import map_leaves

__all__ = [
    "Fault",
    "FaultyCommunicator",
    "RankKilled",
    "delay",
    "injected",
    "kill",
    "raises",
    "reshape",
    "retype",
    "skip",
    "stop",
    "swap",
]

At = int | str
METHODS = ("update", "compute")
_COLLECTIVE_ONLY = ("skip", "swap", "reshape", "retype")


class RankKilled(BaseException):
    """Ends a rank that is a thread, as SIGKILL a process; ``except Exception`` does not catch it.

    >>> def total(comm):
    ...     try:
    ...         return int(all_reduce(torch.tensor(1)))
    ...     except Exception:
    ...         return "went on"
    >>> [each.value for each in outcomes(2, total, faults=[kill(1, "all_reduce")])]
    ['went on', None]
    """


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one rank, and where; :func:`kill` and the other functions make it.

    Attributes:
        kind: the name of the function that makes it.
        rank: the rank that it strikes.
        at: the place, see :mod:`distmetrics.testing.faults`.
        seconds: how long a stop or a delay lasts.
        error: the error that is raised, or None for a ``RuntimeError``.
        change: returns what is sent in the place of a tensor.

    Raises:
        InputError: ``rank`` is negative, ``at`` is no place, or a collective's fault is at a
            method.

    >>> print(Fault("kill", rank=1, at="manifest"))
    kill rank 1 at manifest
    >>> Fault("kill", rank=1, at="manifest") == kill(1, "manifest")
    True
    """

    kind: str
    rank: int
    at: At
    seconds: float = 0.0
    error: BaseException | type[BaseException] | None = None
    change: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise InputError(f"{self.kind}: rank must be 0 or more, got {self.rank}")
        is_number = isinstance(self.at, int) and not isinstance(self.at, bool) and self.at > 0
        if not (is_number or isinstance(self.at, str)):
            raise InputError(
                f"{self.kind}: at must be the name of a place, or a number of a collective from 1 "
                f"on, got {self.at!r}"
            )
        if self.kind in _COLLECTIVE_ONLY and self.at in METHODS:
            raise InputError(
                f"{self.kind} changes a collective, and {self.at!r} is none: use 'manifest', "
                "say, or 1"
            )

    def raised(self) -> BaseException:
        """Return the error that it raises, if it is a fault of :func:`raises`."""
        error = self.error or RuntimeError(f"injected: {self}")
        return error() if isinstance(error, type) else error

    def __str__(self) -> str:
        where = f"collective {self.at}" if isinstance(self.at, int) else self.at
        return f"{self.kind} rank {self.rank} at {where}"


def kill(rank: int, at: At) -> Fault:
    """End the rank at once: by SIGKILL, or on threads by :class:`RankKilled`.

    >>> ended = outcomes(3, lambda comm: all_true(True), faults=[kill(1, "all_true")])
    >>> [type(each.error).__name__ for each in ended]
    ['PeerLostError', 'PeerLostError', 'PeerLostError']
    >>> print(ended[1].error)
    rank 1 was killed at all_true
    """
    return Fault("kill", rank, at)


def stop(rank: int, at: At, seconds: float = 0.5) -> Fault:
    """Freeze the rank for some seconds: a process by SIGSTOP and SIGCONT; a thread sleeps.

    >>> run(2, lambda comm: all_true(True), faults=[stop(1, "all_true", seconds=0.01)])
    [True, True]
    """
    return Fault("stop", rank, at, seconds=seconds)


def delay(rank: int, at: At, seconds: float) -> Fault:
    """Let the rank come ``seconds`` late.

    >>> run(2, lambda comm: all_true(True), faults=[delay(1, "all_true", seconds=0.01)])
    [True, True]
    """
    return Fault("delay", rank, at, seconds=seconds)


def raises(rank: int, at: At, error: BaseException | type[BaseException] | None = None) -> Fault:
    """Raise on the rank; by default a ``RuntimeError`` that says where.

    >>> ended = outcomes(2, lambda comm: all_true(True), faults=[raises(1, at=1)])
    >>> print(ended[1].error)
    injected: raises rank 1 at collective 1
    """
    return Fault("raises", rank, at, error=error)


def skip(rank: int, at: At) -> Fault:
    """Leave a collective out: the rank goes on as if all ranks had sent its own data.

    >>> ended = outcomes(2, lambda comm: all_true(comm.rank == 1), faults=[skip(1, "all_true")])
    >>> ended[1].value
    True
    >>> print(ended[0].error)
    rank 1 has returned, and others still wait for it ...
    """
    return Fault("skip", rank, at)


def swap(rank: int, at: At) -> Fault:
    """Make a collective after the one that follows it, and not before.

    >>> def both(comm):
    ...     comm.all_gather(torch.ones(1))
    ...     comm.broadcast(torch.ones(1), src=0)
    >>> print(outcomes(2, both, faults=[swap(1, at=1)])[0].error)
    ranks disagree on a collective
      rank 0  all_gather float32[1] ...
      rank 1  broadcast from rank 0 float32[1] ...
    """
    return Fault("swap", rank, at)


def reshape(rank: int, at: At, shape: Sequence[int] | Callable[[Tensor], Tensor]) -> Fault:
    """Send another shape: zeros of ``shape``, or what ``shape(tensor)`` returns.

    >>> total = lambda comm: comm.all_reduce(torch.ones(2), "sum")
    >>> print(outcomes(2, total, faults=[reshape(1, 1, shape=[3])])[0].error)
    ranks disagree on a collective
      rank 0  all_reduce sum float32[2] ...
      rank 1  all_reduce sum float32[3] ...
    """
    change = shape if callable(shape) else operator.methodcaller("new_zeros", tuple(shape))
    return Fault("reshape", rank, at, change=change)


def retype(rank: int, at: At, dtype: torch.dtype) -> Fault:
    """Send another dtype.

    >>> total = lambda comm: comm.all_reduce(torch.ones(2), "sum")
    >>> print(outcomes(2, total, faults=[retype(1, 1, torch.float64)])[0].error)
    ranks disagree on a collective
      rank 0  all_reduce sum float32[2] ...
      rank 1  all_reduce sum float64[2] ...
    """
    return Fault("retype", rank, at, change=operator.methodcaller("to", dtype))


R = TypeVar("R")


@dataclass
class _Progress:
    """How far a rank is, and which faults it has not met yet."""

    rank: int
    waiting: list[Fault]
    collectives: int = 0  # so far
    round: int = 0  # of the sync that is under way
    sync: Call | None = None
    # By whose collective it is: the next one of the same ranks comes before it.
    deferred: dict[CallState, list[Callable[[], object]]] = field(default_factory=dict)

    def count(self) -> None:
        """Count a collective; one that is made for no named call goes on with the last sync."""
        call = call_under_way()
        is_named = call is not None and not call.op.startswith("torch.distributed.")
        self.round = 1 if is_named and call is not self.sync else self.round + 1
        self.sync = call if is_named else self.sync
        self.collectives += 1

    def is_at(self, place: At, op: str) -> bool:
        """Return True if the collective ``op``, the last one counted, is the place of a fault."""
        if isinstance(place, int):
            return place == self.collectives
        if place in ("manifest", "data"):
            return self.round == (1 if place == "manifest" else 2)
        call = call_under_way()
        name = op if call is None else call.op.partition(' "')[0]
        name = name.removeprefix("torch.distributed.")
        return place in (op, op.split()[0], name, name.split()[0])

    def due(self, is_due: Callable[[At], bool]) -> list[Fault]:
        """Return the faults that strike now; each strikes once."""
        due = [fault for fault in self.waiting if is_due(fault.at)]
        self.waiting = [fault for fault in self.waiting if fault not in due]
        return due

    def check_struck(self) -> None:
        """Raise if a fault has not struck.

        Raises:
            ConfigurationError: names the faults, and how far the rank got.
        """
        if self.deferred:
            raise ConfigurationError(
                f"swap on rank {self.rank}: no collective followed the one to be swapped",
                do="choose an earlier one, or skip it.",
            )
        if self.waiting:
            raise ConfigurationError(
                f"{', '.join(map(str, self.waiting))}: never reached; rank {self.rank} made "
                f"{self.collectives} collectives",
                likely="a sync whose data rode along with its manifest has no second round.",
                do="choose another place, or number: 1 is the first collective.",
            )


class FaultyCommunicator(InterceptingCommunicator):
    """Passes every call on to ``inner``, except where a fault strikes; :func:`injected` uses it.

    Args:
        inner: the rank's communicator.
        faults: a list; those of other ranks do nothing here.

    >>> def total(comm):
    ...     late = FaultyCommunicator(comm, [delay(1, at=1, seconds=0.01)])
    ...     return int(late.all_reduce(torch.tensor(comm.rank + 1), "sum"))
    >>> run(2, total)
    [3, 3]
    """

    def __init__(self, inner: Communicator, faults: Sequence[Fault]) -> None:
        super().__init__(inner)
        self.progress = _Progress(inner.rank, [each for each in faults if each.rank == inner.rank])

    def subgroup(self, ranks: Sequence[int]) -> Communicator:
        """Return a communicator of some of the ranks, which the same faults strike through."""
        group = FaultyCommunicator(self.inner.subgroup(ranks), ())
        group.progress = self.progress
        return group

    def pass_on(self, op: str, make: Callable[..., R], sent: list[Tensor], alone: R) -> R:
        """Make a collective, unless a fault strikes it; ``alone`` is the result of one left out."""
        progress, state = self.progress, self.state
        progress.count()
        for fault in progress.due(lambda place: progress.is_at(place, op)):
            if fault.kind == "swap":
                later = functools.partial(make, *map_leaves(_copy, sent))
                progress.deferred.setdefault(state, []).append(later)
            if fault.kind == "skip" and progress.round == 1 and call_under_way() is not None:
                state.count -= 1  # as if this rank had not made the call
            if fault.kind in ("skip", "swap"):
                return map_leaves(_copy, alone)
            sent = _changed(fault, op, sent)
            _strike(fault, self)
        result = make(*sent)
        for deferred in reversed(progress.deferred.pop(state, [])):
            deferred()
        return result


def _copy(x: Tensor) -> Tensor:
    return x.detach().clone()


def _changed(fault: Fault, op: str, sent: list[Tensor]) -> list[Tensor]:
    """Return what a rank sends once a fault has struck."""
    if fault.change is None:
        return sent
    changed = [fault.change(x) for x in sent]
    if [(x.dtype, x.shape) for x in changed] == [(x.dtype, x.shape) for x in sent]:
        why = f"what {op} sends has that dtype and shape already" if sent else f"{op} sends nothing"
        raise ConfigurationError(f"{fault}: changes nothing: {why}")
    return changed


def _strike(fault: Fault, comm: Communicator) -> None:
    """Delay, stop, kill, or raise on this rank, whose communicator is ``comm``."""
    is_thread = isinstance(comm.transport, ThreadCommunicator)
    if fault.kind == "raises":
        raise fault.raised()
    if fault.kind == "delay" or (fault.kind == "stop" and is_thread):
        time.sleep(fault.seconds)
    elif fault.kind == "kill" and is_thread:
        raise RankKilled(f"rank {fault.rank} was killed at {fault.at}")
    elif fault.kind in ("kill", "stop"):
        if multiprocessing.parent_process() is None:
            raise ConfigurationError(
                f"{fault}: this rank is no process that the kit has started, and the fault would "
                "strike the test itself",
                do="run it with distmetrics.testing.run(..., backend='gloo', faults=[...]).",
            )
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        # All threads of this process stop; another process wakes them up.
        script = f"sleep {fault.seconds:g}; kill -CONT {os.getpid()}"
        with subprocess.Popen(["/bin/sh", "-c", script]):  # noqa: S603  (numbers only)
            os.kill(os.getpid(), signal.SIGSTOP)


@contextlib.contextmanager
def injected(faults: Fault | Sequence[Fault], comm: Communicator) -> Iterator[Communicator]:
    """Let faults strike inside the block the rank that ``comm`` belongs to.

    The block gets the communicator with the faults, which is also the current one.

    Args:
        faults: one or several; those of other ranks do nothing here.
        comm: the rank's communicator, of either backend, or a layout; then ranks are those of its
            whole mesh.

    Raises:
        ConfigurationError: the block has ended, and a fault has not struck.

    >>> import torch
    >>> import distmetrics as dm
    >>> from distmetrics.testing import faults, outcomes
    >>> def total(comm):
    ...     with injected(faults.raises(1, "manifest", OSError("cable")), comm):
    ...         return dm.all_reduce(torch.ones(1))
    >>> [type(ended.error).__name__ for ended in outcomes(3, total)]
    ['PeerLostError', 'OSError', 'PeerLostError']
    """
    several = [faults] if isinstance(faults, Fault) else faults
    faulty_comm = FaultyCommunicator(comm.whole, several)
    in_force = comm.through(faulty_comm)
    with use(in_force), _methods_watched(faulty_comm):
        yield in_force
    faulty_comm.progress.check_struck()


def faulty(fn: Callable[..., Any], faults: Sequence[Fault], world_size: int) -> Callable[..., Any]:
    """Return ``fn`` as every rank runs it with these faults; as picklable as ``fn`` is.

    Raises:
        InputError: a fault is of a rank that the world does not have.
    """
    for fault in faults:
        if fault.rank >= world_size:
            raise InputError(f"{fault}: a world of {world_size} has no rank {fault.rank}")
    return functools.partial(_with_faults, fn, tuple(faults)) if faults else fn


def _with_faults(
    fn: Callable[..., Any],
    faults: Sequence[Fault],
    comm: Communicator,
    *args: Any,
) -> Any:
    with injected(faults, comm) as faulty_comm:
        return fn(faulty_comm, *args)


def killed_as_lost(ended: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with the error of a process for each thread that was killed."""
    return [
        replace(outcome, error=PeerLostError(str(outcome.error), peers=[outcome.rank]))
        if isinstance(outcome.error, RankKilled)
        else outcome
        for outcome in ended
    ]


@contextlib.contextmanager
def _methods_watched(comm: FaultyCommunicator) -> Iterator[None]:
    """Let faults strike where a metric's method begins on this thread, whatever its library."""
    progress = comm.progress
    if not any(fault.at in METHODS for fault in progress.waiting):
        yield
        return
    before = sys.getprofile()

    def notice(frame: FrameType, event: str, _argument: Any) -> None:
        method = frame.f_code.co_name
        if event == "call" and method in METHODS and _is_of_metric(frame):
            for fault in progress.due(lambda place: place == method):
                _strike(fault, comm)

    sys.setprofile(notice)
    try:
        yield
    finally:
        sys.setprofile(before)


def _is_of_metric(frame: FrameType) -> bool:
    code = frame.f_code
    kind = type(frame.f_locals.get(code.co_varnames[0])) if code.co_argcount else object
    return all(callable(getattr(kind, method, None)) for method in METHODS)
