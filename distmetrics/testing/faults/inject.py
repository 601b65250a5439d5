"""Inject faults into a rank: for the length of a block, or into a function that every rank runs."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from distmetrics.comm.base import Communicator
from distmetrics.comm.current import use
from distmetrics.errors import InputError, PeerLostError
from distmetrics.liveness.outcome import Outcome
from distmetrics.testing.faults.communicator import FaultyCommunicator
from distmetrics.testing.faults.fault import METHODS, Fault, RankKilled


@contextlib.contextmanager
def injected(faults: Fault | Sequence[Fault], comm: Communicator) -> Iterator[FaultyCommunicator]:
    """Let faults strike the rank that ``comm`` belongs to; yield the communicator in force inside.

    Args:
        faults: one or several; those of other ranks do nothing here.
        comm: the rank's communicator, of either backend.

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
    faulty_comm = FaultyCommunicator(comm, [faults] if isinstance(faults, Fault) else faults)
    with use(faulty_comm), _methods_watched(faulty_comm):
        yield faulty_comm
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
    return [
        Outcome(outcome.rank, error=PeerLostError(str(outcome.error), peers=[outcome.rank]))
        if isinstance(outcome.error, RankKilled)
        else outcome
        for outcome in ended
    ]


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
