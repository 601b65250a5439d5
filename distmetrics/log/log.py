"""What a training run says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Literal, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, library

from distmetrics.arguments import Takes, check, whole
from distmetrics.collectives.header import Problem
from distmetrics.comm.background import Handle, start
from distmetrics.comm.communicator import Communicator, chosen
from distmetrics.errors import DistmetricsError, in_short
from distmetrics.log.accumulate import Window
from distmetrics.log.kinds import KINDS, MAX, MEAN, MIN, QUANTILE, SAME, STD, SUM, Kind
from distmetrics.log.merge import Known, Snapshot, combined
from distmetrics.log.writers import Writer, Writers

_WINDOWS: WeakValueDictionary[int, Window] = WeakValueDictionary()
_NUMBERS = count()
# A CUDA graph would record the operation, and not run it again.
_TAGS = tuple(tag for name, tag in vars(torch.Tag).items() if name == "cudagraph_unsafe")


class Compiled:
    """Notes values in a window, from compiled code."""

    def __init__(self, window: Window) -> None:
        self._number = next(_NUMBERS)
        self._token = torch.zeros((), device="cpu")
        _WINDOWS[self._number] = window

    def note(self, name: Any, kind: Kind, value: Any, weight: Any) -> None:
        """Take a value, as :meth:`Window.note` does."""
        number = _tensor_of(value, torch.device("cpu"))
        scale = _tensor_of(weight, number.device) if kind.is_weighted else None
        _note(self._token, self._number, name, kind.name, number, scale)

    def note_all(self, values: Mapping[Any, Any], kind: Kind, weight: Any) -> None:
        """Take values of several names, as :meth:`Window.note_all` does."""
        for name, value in values.items():
            self.note(name, kind, value, weight)


def _tensor_of(value: Any, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, list | tuple):
        return torch.tensor(value, dtype=torch.float64, device=device)
    return torch.full((), value, dtype=torch.float64, device=device)


@library.custom_op("distmetrics::note", mutates_args=("token",), tags=_TAGS)
def _note(
    token: Tensor, window: int, name: str, kind: str, value: Tensor, weight: Tensor | None
) -> None:
    # Compiled code uses the memory of its values again.
    scale = 1.0 if weight is None else weight.clone()
    _WINDOWS[window].note(name, KINDS[kind], value.clone(), scale)


Number = float | Tensor
Value = Number | Sequence[float]  # or what numpy has
Values = Mapping[str, Value]
Row = dict[str, Any]  # a float, or a list of them for an array
_STEP = Takes(lambda value: whole(value, 0), "a whole number").or_none("None to count flushes")


class Log:
    """The log of a training run: values of all ranks and steps, combined once a window.

    Between two flushes nothing is sent and nothing waits for the device: values are added up on it,
    in float64. Ranks may log other names; a row has those that some rank has logged.

    A value is a number or a tensor of one element, on any device, or has one dimension: an array,
    whose elements are combined each by itself and are a list in the row; for :meth:`std` and
    :meth:`quantile` it is so many samples. A DTensor must be replicated. What is none of these, or
    what a name has another kind or shape of, is an error on every rank at the next flush. All but
    the flush may be called in a function that is compiled, ``torch.compile(step, fullgraph=True)``.

    Args:
        comm: who talks, or a layout; default the communicator in force at each flush.
        writers: who gets each row: functions ``writer(row, step)``, or loggers with
            ``log_metrics(row, step)``, such as those of ``distmetrics.log`` and of Lightning. They
            are called on the first of all ranks alone.

    Raises:
        ConfigurationError: a writer is neither.

    >>> def train(comm):
    ...     log = Log(comm)
    ...     for loss in (1.0, 2.0):
    ...         log.mean("loss", loss + comm.rank, weight=8)
    ...     return log.flush()
    >>> run(2, train)
    [{'loss': 2.0}, {'loss': 2.0}]
    """

    def __init__(self, comm: Communicator | None = None, *, writers: Sequence[Writer] = ()) -> None:
        self._comm = comm
        self._writers = Writers(writers)
        self._flushes = 0
        self._window = Window()
        self._compiled = Compiled(self._window)
        # By communicator: its ranks know the same names, and others know others.
        self._known: WeakKeyDictionary[Communicator, Known] = WeakKeyDictionary()
        self._flush: tuple[Handle[Row], Snapshot] | None = None  # under way

    def _note(self, name: str | Values, kind: Kind, value: Any, weight: Any = 1.0) -> None:
        noting = self._compiled if torch.compiler.is_compiling() else self._window
        if value is None and isinstance(name, Mapping):
            noting.note_all(name, kind, weight)
        else:
            noting.note(name, kind, value, weight)

    def mean(self, name: str | Values, value: Value | None = None, *, weight: Value) -> None:
        """Log a mean: all values of all ranks, each counted by its weight.

        Args:
            name: of the value; or the values by their names, which takes a third of the time.
            value: a number or an array; it is not looked at where the weight is 0.
            weight: what each value is a mean over, as tokens or samples; finite, not negative; one
                for all elements of an array, or one of each. The mean of a window without weight
                is NaN.
        """
        self._note(name, MEAN, value, weight)

    def sum(self, name: str | Values, value: Value | None = None) -> None:
        """Log a part of a sum over all values of all ranks; or parts, by their names."""
        self._note(name, SUM, value)

    def max(self, name: str | Values, value: Value | None = None) -> None:
        """Log a value of which the largest counts; NaN, where there is one. Or values by names."""
        self._note(name, MAX, value)

    def min(self, name: str | Values, value: Value | None = None) -> None:
        """Log a value of which the smallest counts; NaN, where there is one. Or values by names."""
        self._note(name, MIN, value)

    def same(self, name: str | Values, value: Value | None = None) -> None:
        """Log a value that all ranks have, or values by names; the latest one counts.

        Where ranks that log it have another one, the flush raises MismatchError on every rank.
        """
        self._note(name, SAME, value)

    def std(self, name: str | Values, value: Value | None = None, *, weight: Value = 1.0) -> None:
        """Log samples of which the standard deviation is told, over all ranks and steps.

        It is the square root of Σ w (x - m)² / (Σ w - 1), where m = Σ w x / Σ w: that of
        ``torch.std`` over all samples, right also where their mean is large and the spread small;
        NaN, where they weigh 1 or less together. After Chan, Golub and LeVeque, 1979.

        Args:
            name: of the samples; or samples by their names.
            value: one sample, or several in one dimension; the numbers may differ, also be 0.
            weight: how often each counts, a mask say; one for all, or one of each.
        """
        self._note(name, STD, value, weight)

    def quantile(self, name: str | Values, value: Value | None = None) -> None:
        """Log samples of which p50, p90, p99 and max are told, as ``name_p50``; or such by names.

        Quantiles are right to 1 %, for sizes from 1e-9 to 6e8; the maximum is exact.
        """
        self._note(name, QUANTILE, value)

    @overload
    def flush(self, step: int | None = None, *, wait: Literal[True] = True) -> Row: ...

    @overload
    def flush(self, step: int | None = None, *, wait: Literal[False]) -> Handle[Row]: ...

    def flush(self, step: int | None = None, *, wait: bool = True) -> Row | Handle[Row]:
        """Return what all ranks have logged since the last flush, and begin anew.

        Every rank must call it, also one that has logged nothing. Ranks get the same bits.

        Args:
            step: that writers are told; default the number of flushes so far, this one included.
            wait: with False the exchange runs in the background, in order, while this rank goes on;
                ``result()`` of what is returned gives the row, and to writers. What nobody has
                asked for is given to writers by the next flush, or raised by it on every rank.

        Raises:
            MismatchError: ranks log a name in two ways, or what must be the same is not.
            InputError: a value of some rank cannot be counted. Each on every rank; what was logged
                is kept.
            ConfigurationError: the step is no whole number.
            Exception: what a writer has raised, on its rank, once this flush is made or under way.
        """
        check("Log.flush", {"step": step}, {"step": _STEP})
        of_flush, of_writer = self._end_flush()
        if of_flush is not None:
            # Other ranks may have heard of it: so that all do the same, it is told to all once
            # more, and what is logged is kept.
            what = f"the flush before failed, and nobody has asked: {in_short(of_flush)}"
            self._window.problem = self._window.problem or Problem("StateError", what)
        with _afterwards(of_writer), _instead(of_flush):
            return self._flushed(step, wait=wait, is_heard=of_flush is not None)

    def _flushed(self, step: int | None, *, wait: bool, is_heard: bool) -> Row | Handle[Row]:
        self._flushes += 1
        comm = chosen(self._comm)
        logged = self._window.snapshot(comm.device)
        make = partial(_combine, logged, self._known.setdefault(comm, Known()))
        write = self._writing(comm, self._flushes if step is None else step)
        if not wait:
            handle = start(make, comm, write)
            handle.is_heard = is_heard
            self._flush = handle, logged
            self._window.clear()
            return handle
        self._window.clear()
        try:
            row = make(comm)
        except DistmetricsError:  # on every rank: nobody has counted it
            self._window.add(logged.names, logged.numbers.cpu())
            raise
        if write is not None:
            write(row)
        return row

    def _writing(self, comm: Communicator, step: int) -> Callable[[Row], None] | None:
        """Return what gives a row to the writers; None where there is nothing to do."""
        is_first = comm.whole.rank == 0
        return partial(self._writers.write, step=step) if is_first and self._writers else None

    def _end_flush(self) -> tuple[Exception | None, Exception | None]:
        """Wait for the flush under way; if it fails, keep what it should have told.

        Returns what nobody has asked for: what the flush has raised, and what a writer has, which
        is this rank's own and must not keep it from what other ranks do next.
        """
        if self._flush is None:
            return None, None
        (handle, logged), self._flush = self._flush, None
        handle.wait()
        if isinstance(handle.error, DistmetricsError):
            self._window.add(logged.names, logged.numbers.cpu())
        if handle.is_heard:
            return None, None
        try:
            handle.result()
        except Exception as error:  # noqa: BLE001  (raised by who calls this)
            return (None, error) if handle.error is None else (error, None)
        return None, None

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank has logged since the last flush, to be saved."""
        of_flush, of_writer = self._end_flush()
        with _afterwards(of_writer), _instead(of_flush):
            return {**self._window.state(), "flushes": self._flushes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that was saved, by this rank or by several, one after the other."""
        self._window.load(state)
        self._flushes = max(self._flushes, state["flushes"])


def _combine(logged: Snapshot, known: Known, comm: Communicator) -> Row:
    return combined(logged, known, comm=comm)


@contextmanager
def _afterwards(failed: Exception | None) -> Iterator[None]:
    """Raise what a writer has raised after the block, or note it on what the block raises."""
    try:
        yield
    except Exception as error:
        if failed is not None:
            notes = " ".join(failed.__notes__)
            error.add_note(f"Before it, a writer failed: {in_short(failed)} ({notes})")
        raise
    if failed is not None:
        raise failed


@contextmanager
def _instead(failed: Exception | None) -> Iterator[None]:
    """Raise an error once the block is over, whatever that raises because of it."""
    try:
        yield
    except DistmetricsError as error:
        if failed is None:
            raise
        raise failed from error
    if failed is not None:
        raise failed
