"""What a fault is, and the functions that make one."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distmetrics.errors import InputError

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
