"""Faults to inject: one rank is killed, stops, is late, raises, skips or swaps collectives, sends
another shape.

A fault strikes one rank at one place, once. Places are ``"update"`` and ``"compute"`` (the metric's
own methods), ``"manifest"`` and ``"data"`` (the first and the second round of a sync), the name of
a collective (``"all_reduce"``), or a number: 1 is the rank's first collective.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distmetrics.comm.base import Communicator
from distmetrics.comm.current import use
from distmetrics.errors import InputError, PeerLostError
from distmetrics.liveness.outcome import Outcome
from distmetrics.testing.faults.communicator import FaultyCommunicator
from distmetrics.testing.faults.fault import (
    Fault,
    RankKilled,
    delay,
    kill,
    raises,
    reshape,
    retype,
    skip,
    stop,
    swap,
)
from distmetrics.testing.faults.strike import methods_watched

__all__ = [
    "Fault",
    "FaultyCommunicator",
    "RankKilled",
    "delay",
    "faulty",
    "injected",
    "kill",
    "raises",
    "reshape",
    "retype",
    "skip",
    "stop",
    "swap",
    "told",
]


@contextlib.contextmanager
def injected(faults: Fault | Sequence[Fault], comm: Communicator) -> Iterator[FaultyCommunicator]:
    """Let faults strike the rank that ``comm`` belongs to; the communicator that is yielded is in
    force inside.

    Args:
        faults: one or several; those of other ranks do nothing here.
        comm: the rank's communicator, of either backend.

    Raises:
        ConfigurationError: the block has ended and a fault never struck: the test would show
            nothing.

    >>> import distmetrics as dm
    >>> from distmetrics.testing import outcomes
    >>> def total(comm):
    ...     with injected(raises(rank=1, at="manifest", error=OSError("cable")), comm):
    ...         return dm.all_reduce(torch.ones(1))
    >>> [type(ended.error).__name__ for ended in outcomes(3, total)]
    ['PeerLostError', 'OSError', 'PeerLostError']
    """
    listed = [faults] if isinstance(faults, Fault) else list(faults)
    faulty_comm = FaultyCommunicator(comm, listed)
    with (
        use(faulty_comm),
        methods_watched(faulty_comm.reach) if faulty_comm.watches else contextlib.nullcontext(),
    ):
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
    return _Faulty(fn, tuple(faults)) if faults else fn


def told(ended: Sequence[Outcome]) -> list[Outcome]:
    """Tell of a thread that was killed what is told of a process."""
    return [
        Outcome(outcome.rank, error=PeerLostError(str(outcome.error), peers=[outcome.rank]))
        if isinstance(outcome.error, RankKilled)
        else outcome
        for outcome in ended
    ]


@dataclass(frozen=True)
class _Faulty:
    fn: Callable[..., Any]
    faults: tuple[Fault, ...]

    def __call__(self, comm: Communicator, *args: Any) -> Any:
        with injected(self.faults, comm) as faulty_comm:
            return self.fn(faulty_comm, *args)
