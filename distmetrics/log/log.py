"""What a training run says of itself."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, overload
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from distmetrics.comm.background import Handle, start
from distmetrics.comm.base import Communicator
from distmetrics.comm.current import chosen
from distmetrics.errors import DistmetricsError
from distmetrics.log.combine import combined
from distmetrics.log.compiled import Compiled
from distmetrics.log.kinds import MAX, MEAN, MIN, QUANTILE, SAME, SUM, Kind
from distmetrics.log.names import Names
from distmetrics.log.window import Snapshot, Window


class Log:
    """The log of a training run: values of all ranks and steps, combined once a window.

    Between two flushes nothing is sent and nothing waits for the device: values are added up on it,
    in float64. Ranks may log other names; a row has those that some rank has logged.

    A value is a number or a tensor of one element, on any device. One that is no number, or that a
    name has another kind of, is an error on every rank at the next flush. All but the flush may be
    called in a function that is compiled, ``torch.compile(step, fullgraph=True)``.

    Args:
        comm: who talks, or a layout; default the communicator in force at each flush.

    >>> def train(comm):
    ...     log = Log(comm)
    ...     for loss in (1.0, 2.0):
    ...         log.mean("loss", loss + comm.rank, weight=8)
    ...     return log.flush()
    >>> run(2, train)
    [{'loss': 2.0}, {'loss': 2.0}]
    """

    def __init__(self, comm: Communicator | None = None) -> None:
        self._comm = comm
        self._window = Window()
        self._compiled = Compiled(self._window)
        # By communicator: its ranks know the same names, and others know others.
        self._known: WeakKeyDictionary[Communicator, dict[str, Names]] = WeakKeyDictionary()
        self._flush: tuple[Handle[dict[str, float]], Snapshot] | None = None  # under way

    def _note(self, name: str, kind: Kind, value: Any, weight: Any = 1.0) -> None:
        if torch.compiler.is_compiling():
            self._compiled.note(name, kind, value, weight)
        else:
            self._window.note(name, kind, value, weight)

    def mean(self, name: str, value: float | Tensor, *, weight: float | Tensor) -> None:
        """Log a mean: all values of all ranks, each counted by its weight.

        Args:
            name: of the value.
            value: one number; it is not looked at where the weight is 0.
            weight: what the value is a mean over, as tokens or samples; finite, not negative. The
                mean of a window without weight is NaN.
        """
        self._note(name, MEAN, value, weight)

    def sum(self, name: str, value: float | Tensor) -> None:
        """Log a part of a sum over all values of all ranks."""
        self._note(name, SUM, value)

    def max(self, name: str, value: float | Tensor) -> None:
        """Log a value of which the largest counts; NaN, where there is one."""
        self._note(name, MAX, value)

    def min(self, name: str, value: float | Tensor) -> None:
        """Log a value of which the smallest counts; NaN, where there is one."""
        self._note(name, MIN, value)

    def same(self, name: str, value: float | Tensor) -> None:
        """Log a value that all ranks have; the latest one counts.

        Where ranks that log it have another one, the flush raises MismatchError on every rank.
        """
        self._note(name, SAME, value)

    def quantile(self, name: str, value: float | Tensor) -> None:
        """Log a value of which p50, p90, p99 and max are told, as ``name_p50`` and so on.

        Quantiles are right to 1 %, for sizes from 1e-9 to 6e8; the maximum is exact.
        """
        self._note(name, QUANTILE, value)

    @overload
    def flush(self) -> dict[str, float]: ...

    @overload
    def flush(self, *, wait: Literal[True]) -> dict[str, float]: ...

    @overload
    def flush(self, *, wait: Literal[False]) -> Handle[dict[str, float]]: ...

    def flush(self, *, wait: bool = True) -> dict[str, float] | Handle[dict[str, float]]:
        """Return what all ranks have logged since the last flush, and begin anew.

        Every rank must call it, also one that has logged nothing. Ranks get the same bits.

        Args:
            wait: with False the exchange runs in the background, in order, while this rank goes on;
                ``result()`` of what is returned gives the row. An error that nobody has asked for
                is raised by the next flush.

        Raises:
            MismatchError: ranks log a name in two ways, or what must be the same is not.
            InputError: a value of some rank cannot be counted. Each on every rank; what was logged
                is kept.
        """
        self._end_flush()
        comm = chosen(self._comm)
        logged = self._window.snapshot(comm.device)
        make = partial(_combine, logged, self._known.setdefault(comm, {}))
        if not wait:
            handle = start(make, comm)
            self._flush = handle, logged
            self._window.clear()
            return handle
        self._window.clear()
        try:
            return make(comm)
        except DistmetricsError:  # on every rank: nobody has counted it
            self._window.add(logged.names, logged.numbers.cpu())
            raise

    def _end_flush(self) -> None:
        """Wait for the flush under way; if it fails, keep what it should have told."""
        if self._flush is None:
            return
        (handle, logged), self._flush = self._flush, None
        handle.wait()
        if isinstance(handle.error, DistmetricsError):
            self._window.add(logged.names, logged.numbers.cpu())
        if not handle.is_heard:
            handle.result()

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank has logged since the last flush, to be saved."""
        self._end_flush()
        return self._window.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that was saved, by this rank or by several, one after the other."""
        self._window.load(state)


def _combine(logged: Snapshot, known: dict[str, Names], comm: Communicator) -> dict[str, float]:
    return combined(logged, known, comm=comm)
