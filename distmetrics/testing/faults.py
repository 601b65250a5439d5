"""Faults to inject: ways for one rank of a world to fail, each at one place and once.

Places are ``"update"`` and ``"compute"`` (the metric's
own methods), ``"manifest"`` and ``"data"`` (the first and the second round of a sync), the name of
a collective (``"all_reduce"``), or a number: 1 is the rank's first collective. Over a layout, ranks
are those of its whole mesh, and the making of it does not count.
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
from dataclasses import dataclass
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
    """Ends a rank that is a thread as SIGKILL ends a process: no ``except Exception`` holds it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one rank, and where; made by :func:`kill` and its kin.

    Attributes:
        kind: the name of the function that makes it.
        rank: whom it strikes.
        at: where, see :mod:`distmetrics.testing.faults`.
        seconds: of a stop or a delay.
        error: what is raised.
        change: what becomes of a tensor that is sent.
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
        if isinstance(self.at, bool) or not isinstance(self.at, int | str):
            raise InputError(
                f"{self.kind}: at must be the name of a place or a number, got {self.at!r}"
            )
        if isinstance(self.at, int) and self.at < 1:
            raise InputError(f"{self.kind}: at counts collectives from 1, got {self.at}")
        if self.kind in _COLLECTIVE_ONLY and self.at in METHODS:
            raise InputError(
                f"{self.kind} changes a collective, and {self.at!r} is none: use 'manifest', "
                "say, or 1"
            )

    def raised(self) -> BaseException:
        """Return the error that a ``raises`` raises."""
        error = self.error or RuntimeError(f"injected: {self}")
        return error() if isinstance(error, type) else error

    def __str__(self) -> str:
        where = f"collective {self.at}" if isinstance(self.at, int) else self.at
        return f"{self.kind} rank {self.rank} at {where}"


def kill(rank: int, at: At) -> Fault:
    """End the rank at once: by SIGKILL, or on threads by an exception that nothing catches."""
    return Fault("kill", rank, at)


def stop(rank: int, at: At, seconds: float = 0.5) -> Fault:
    """Freeze the rank for a while: SIGSTOP, later SIGCONT, for a process; a thread sleeps."""
    return Fault("stop", rank, at, seconds=seconds)


def delay(rank: int, at: At, seconds: float) -> Fault:
    """Let the rank come late."""
    return Fault("delay", rank, at, seconds=seconds)


def raises(rank: int, at: At, error: BaseException | type[BaseException] | None = None) -> Fault:
    """Raise on the rank; by default a ``RuntimeError`` that says where."""
    return Fault("raises", rank, at, error=error)


def skip(rank: int, at: At) -> Fault:
    """Leave a collective out: the rank goes on as if all ranks had sent what it has."""
    return Fault("skip", rank, at)


def swap(rank: int, at: At) -> Fault:
    """Make a collective after the one that follows it, and not before."""
    return Fault("swap", rank, at)


def reshape(rank: int, at: At, shape: Sequence[int] | Callable[[Tensor], Tensor]) -> Fault:
    """Send another shape: zeros of ``shape``, or what ``shape(tensor)`` returns."""
    change = shape if callable(shape) else operator.methodcaller("new_zeros", tuple(shape))
    return Fault("reshape", rank, at, change=change)


def retype(rank: int, at: At, dtype: torch.dtype) -> Fault:
    """Send another dtype."""
    return Fault("retype", rank, at, change=operator.methodcaller("to", dtype))


R = TypeVar("R")


class FaultyCommunicator(InterceptingCommunicator):
    """Passes every call on to ``inner``, but where a fault strikes."""

    def __init__(self, inner: Communicator, faults: Sequence[Fault]) -> None:
        super().__init__(inner)
        self._waiting = [fault for fault in faults if fault.rank == inner.rank]
        self._collectives = 0  # so far
        self._round = 0  # of the sync that is under way
        self._sync: Call | None = None
        # By whose collective it is: the next one of the same ranks comes before it.
        self._deferred: dict[CallState, list[Callable[[], object]]] = {}

    def subgroup(self, ranks: Sequence[int]) -> Communicator:
        """Return a communicator of some of the ranks, which the same faults strike through."""
        return _Subgroup(self.inner, ranks, self)

    @property
    def waits_for_methods(self) -> bool:
        """True if a fault waits for a method of a metric."""
        return any(fault.at in METHODS for fault in self._waiting)

    def reach(self, method: str) -> None:
        """Let the faults strike that wait for a method of a metric."""
        for fault in self._due(lambda fault: fault.at == method):
            _strike(fault, self.inner)

    def check_struck(self) -> None:
        """Raise if a fault has not struck.

        Raises:
            ConfigurationError: names the faults, and how far the rank got.
        """
        if self._deferred:
            raise ConfigurationError(
                f"swap on rank {self.rank}: no collective followed the one to be swapped",
                do="choose an earlier one, or skip it.",
            )
        if self._waiting:
            raise ConfigurationError(
                f"{', '.join(map(str, self._waiting))}: never reached; rank {self.rank} made "
                f"{self._collectives} collectives",
                likely="a sync whose data rode along with its manifest has no second round.",
                do="choose another place, or number: 1 is the first collective.",
            )

    def _count(self) -> None:
        """Count a collective; one that is made for no named call goes on with the last sync."""
        call = call_under_way()
        is_named = call is not None and not call.op.startswith("torch.distributed.")
        self._round = 1 if is_named and call is not self._sync else self._round + 1
        self._sync = call if is_named else self._sync
        self._collectives += 1

    def _is_at(self, place: At, op: str) -> bool:
        """Return True if the collective ``op``, the last one counted, is the place of a fault."""
        if isinstance(place, int):
            return place == self._collectives
        if place in ("manifest", "data"):
            return self._round == (1 if place == "manifest" else 2)
        call = call_under_way()
        name = op
        if call is not None:
            name = call.op.partition(' "')[0].removeprefix("torch.distributed.")
        return place in (op, op.split()[0], name, name.split()[0])

    def _due(self, is_due: Callable[[Fault], bool]) -> list[Fault]:
        """Return the faults that strike now; each strikes once."""
        due = [fault for fault in self._waiting if is_due(fault)]
        self._waiting = [fault for fault in self._waiting if fault not in due]
        return due

    def pass_on(self, op: str, make: Callable[..., R], sent: list[Tensor], alone: R) -> R:
        """Make a collective, unless a fault strikes it; ``alone`` is the result of one left out."""
        return self.strike(self.inner, op, make, sent, alone)

    def strike(self, comm: Any, op: str, make: Callable[..., R], sent: list[Tensor], alone: R) -> R:
        """Do what :meth:`pass_on` does, for a collective of ``comm``."""
        self._count()
        state = comm.state
        for fault in self._due(lambda fault: self._is_at(fault.at, op)):
            if fault.kind == "swap":
                later = functools.partial(make, *map_leaves(_copy, sent))
                self._deferred.setdefault(state, []).append(later)
            if fault.kind == "skip" and self._round == 1 and call_under_way() is not None:
                state.count -= 1  # as if this rank had not made the call
            if fault.kind in ("skip", "swap"):
                return map_leaves(_copy, alone)
            sent = _changed(fault, op, sent)
            _strike(fault, self.inner)
        result = make(*sent)
        for deferred in reversed(self._deferred.pop(state, [])):
            deferred()
        return result


class _Subgroup(InterceptingCommunicator):
    """Some ranks of a communicator that faults strike through."""

    def __init__(self, whole: Any, ranks: Sequence[int], faulty: FaultyCommunicator) -> None:
        super().__init__(whole.subgroup(ranks))
        self._faulty = faulty

    def subgroup(self, ranks: Sequence[int]) -> Communicator:
        """Return a communicator of some of the ranks."""
        return _Subgroup(self.inner, ranks, self._faulty)

    def pass_on(self, op: str, make: Callable[..., R], sent: list[Tensor], alone: R) -> R:
        """Make a collective, unless a fault strikes it."""
        return self._faulty.strike(self.inner, op, make, sent, alone)


def _copy(x: Tensor) -> Tensor:
    return x.detach().clone()


def _kind(x: Tensor) -> tuple[torch.dtype, torch.Size]:
    return x.dtype, x.shape


def _changed(fault: Fault, op: str, sent: list[Tensor]) -> list[Tensor]:
    """Return what a rank sends once a fault has struck."""
    if fault.change is None:
        return sent
    changed = [fault.change(x) for x in sent]
    if list(map(_kind, changed)) == list(map(_kind, sent)):
        why = f"what {op} sends has that dtype and shape already" if sent else f"{op} sends nothing"
        raise ConfigurationError(f"{fault}: changes nothing: {why}")
    return changed


def _strike(fault: Fault, comm: Communicator) -> None:
    """Delay, stop, kill, or raise on this rank, whose communicator is ``comm``."""
    if fault.kind == "raises":
        raise fault.raised()
    if fault.kind == "delay" or (
        fault.kind == "stop" and isinstance(comm.transport, ThreadCommunicator)
    ):
        time.sleep(fault.seconds)
    elif fault.kind == "kill" and isinstance(comm.transport, ThreadCommunicator):
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
    """Let faults strike the rank that ``comm`` belongs to; yield the communicator in force inside.

    Args:
        faults: one or several; those of other ranks do nothing here.
        comm: the rank's communicator, of either backend, or a layout; ranks are those of all its
            mesh then.

    Raises:
        ConfigurationError: the block has ended and a fault never struck: the test would show
            nothing.

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
    faulty_comm.check_struck()


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
    return [_as_lost(outcome) for outcome in ended]


def _as_lost(outcome: Outcome) -> Outcome:
    if not isinstance(outcome.error, RankKilled):
        return outcome
    error = PeerLostError(str(outcome.error), peers=[outcome.rank])
    return Outcome(outcome.rank, error=error)


@contextlib.contextmanager
def _methods_watched(comm: FaultyCommunicator) -> Iterator[None]:
    """Tell ``comm`` when a metric's method begins on this thread, whatever its library."""
    if not comm.waits_for_methods:
        yield
        return
    before = sys.getprofile()

    def notice(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_name in METHODS and _is_of_metric(frame):
            comm.reach(frame.f_code.co_name)

    sys.setprofile(notice)
    try:
        yield
    finally:
        sys.setprofile(before)


def _is_of_metric(frame: FrameType) -> bool:
    if not frame.f_code.co_argcount:
        return False
    kind = type(frame.f_locals.get(frame.f_code.co_varnames[0]))
    return all(callable(getattr(kind, method, None)) for method in METHODS)
