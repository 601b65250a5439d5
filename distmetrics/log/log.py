"""What a training run says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, overload
from weakref import WeakValueDictionary

import torch
from torch import Tensor, library

from distmetrics.collectives.header import Problem
from distmetrics.comm.background import Handle, start
from distmetrics.comm.communicator import Communicator, chosen
from distmetrics.errors import ConfigurationError, DistmetricsError, StateError, in_short
from distmetrics.log.kinds import KINDS
from distmetrics.log.merge import Known, flushed
from distmetrics.log.window import Window, WindowSnapshot
from distmetrics.log.writers import Writer, write

# Compiled code notes values by the number of a window.
_WINDOWS: WeakValueDictionary[int, Window] = WeakValueDictionary()
# A CUDA graph would record the operation, and not run it again.
_TAGS = tuple(tag for name, tag in vars(torch.Tag).items() if name == "cudagraph_unsafe")


@library.custom_op("distmetrics::note", mutates_args=("token",), tags=_TAGS)
def _note(
    token: Tensor, window: int, name: str, kind: str, value: Tensor, weight: Tensor | None
) -> None:
    # Compiled code uses the memory of its values again.
    scale = 1.0 if weight is None else weight.clone()
    _WINDOWS[window].note(name, KINDS[kind], value.clone(), scale)


def _tensor_of(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    # With as_tensor a step would be compiled anew for each number that Python has. The types are
    # tuples, since torch 2.9 does not compile unions.
    if isinstance(value, (float, int)):
        return torch.full((), value, dtype=torch.float64, device="cpu")
    if isinstance(value, (list, tuple)):
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    return torch.as_tensor(value, dtype=torch.float64, device="cpu")


Value = float | Tensor | Sequence[float]  # or what numpy has
Values = Mapping[str, Value]
Row = dict[str, Any]  # a float, or a list of them for an array


class Log:
    """The log of a training run: values of all ranks and steps, combined once a window.

    Between two flushes nothing is sent and nothing waits for the device: values are added up on it,
    in float64. Ranks may log different names; a row has the names that some rank has logged.

    A value is a number or a tensor of one element, on any device; or it has one dimension. Then it
    is an array, whose elements are combined one by one and are a list in the row; for :meth:`std`
    and :meth:`quantile` it is samples. A DTensor must be replicated. Any other value, and a name
    that is logged as two kinds or shapes, is an error on every rank at the next flush. What logs a
    value may be called in a compiled function, ``torch.compile(step, fullgraph=True)``.

    Args:
        comm: the ranks, or a layout; default the current communicator of each flush.
        writers: who gets each row: functions ``writer(row, step)``, or loggers with
            ``log_metrics(row, step)``, such as those of ``distmetrics.log`` and of Lightning. They
            are called on the first rank alone.

    Raises:
        ConfigurationError: ``writers`` is no list of these.

    >>> def train(comm):
    ...     log = Log(comm)
    ...     for loss in (1.0, 2.0):
    ...         log.mean("loss", loss + comm.rank, weight=8)
    ...     return log.flush()
    >>> run(2, train)
    [{'loss': 2.0}, {'loss': 2.0}]
    """

    def __init__(self, comm: Communicator | None = None, *, writers: Sequence[Writer] = ()) -> None:
        is_list = isinstance(writers, list | tuple)
        if not is_list or not all(callable(x) or hasattr(x, "log_metrics") for x in writers):
            raise ConfigurationError(
                f"Log: writers must be a list of functions of a row and a step, or of loggers, got "
                f"{writers!r}"
            )
        self._comm = comm
        self._writers = [*writers]
        self._flushes = 0
        self._window = Window()
        self._number = id(self._window)
        _WINDOWS[self._number] = self._window
        # Each note of compiled code changes it, so that they keep their order.
        self._token = torch.zeros((), device="cpu")
        self._known = Known()
        self._flush: tuple[Handle[Row], WindowSnapshot] | None = None  # under way

    def _note(self, name: str | Values, kind: str, value: Any, weight: Any = 1.0) -> None:
        is_of_many = value is None and isinstance(name, Mapping)
        if torch.compiler.is_compiling():
            values: Any = name if is_of_many else {name: value}
            for each, its_value in values.items():
                scale = _tensor_of(weight) if kind in ("mean", "std") else None
                _note(self._token, self._number, each, kind, _tensor_of(its_value), scale)
        elif is_of_many:
            self._window.note_all(name, KINDS[kind], weight)  # type: ignore[arg-type]
        else:
            self._window.note(name, KINDS[kind], value, weight)

    def mean(self, name: str | Values, value: Value | None = None, *, weight: Value) -> None:
        """Log a mean: all values of all ranks, each counted by its weight.

        Args:
            name: of the value; or a dict of values by name, which takes a third of the time.
            value: a number or an array; it does not count where the weight is 0.
            weight: how many tokens or samples a value is the mean of; finite, not negative; one for
                all elements of an array, or one for each. A mean whose weights are all 0 is NaN.
        """
        self._note(name, "mean", value, weight)

    def sum(self, name: str | Values, value: Value | None = None) -> None:
        """Log a value to be added to those of all ranks and steps; or values by names."""
        self._note(name, "sum", value)

    def max(self, name: str | Values, value: Value | None = None) -> None:
        """Log a value of which the largest counts, or NaN if there is one; or values by names."""
        self._note(name, "max", value)

    def min(self, name: str | Values, value: Value | None = None) -> None:
        """Log a value of which the smallest counts, or NaN if there is one; or values by names."""
        self._note(name, "min", value)

    def same(self, name: str | Values, value: Value | None = None) -> None:
        """Log a value that is equal on all ranks, or values by names; the latest one counts.

        Where it differs, the flush raises MismatchError on every rank.
        """
        self._note(name, "same", value)

    def std(self, name: str | Values, value: Value | None = None, *, weight: Value = 1.0) -> None:
        """Log samples; the row has their standard deviation over all ranks and steps.

        It is the square root of Σ w (x - m)² / (Σ w - 1), where m = Σ w x / Σ w: that of
        ``torch.std`` over all samples, right also where their mean is large and the spread small;
        NaN, where they weigh 1 or less together. After Chan, Golub and LeVeque, 1979.

        Args:
            name: of the samples; or a dict of samples by name.
            value: one sample, or several in one dimension; their number may differ, and be 0.
            weight: how often each counts, such as a mask; one for all, or one for each.
        """
        self._note(name, "std", value, weight)

    def quantile(self, name: str | Values, value: Value | None = None) -> None:
        """Log samples, or samples by names; the row has their p50, p90, p99 and max.

        They are ``name_p50`` and so on. The relative error of a quantile is at most 1 %, for sizes
        from 1e-9 to 6e8; the maximum is exact. After DDSketch by Masson, Rim and Lee, 2019.
        """
        self._note(name, "quantile", value)

    @overload
    def flush(self, step: int | None = None, *, wait: Literal[True] = True) -> Row: ...

    @overload
    def flush(self, step: int | None = None, *, wait: Literal[False]) -> Handle[Row]: ...

    def flush(self, step: int | None = None, *, wait: bool = True) -> Row | Handle[Row]:
        """Return what all ranks have logged since the last flush, and begin anew.

        Every rank must call it, also one that has logged nothing. Ranks get the same bits.

        Args:
            step: the step that writers get; default the number of flushes, this one included.
            wait: False runs the exchange in the background while this rank goes on. ``result()`` of
                the handle that is returned gives the row, also to writers. If nobody asks for it,
                the next flush gives it to writers, or raises its error.

        Returns:
            a dict of floats by name, or of lists of floats for arrays; or a handle of it.

        Raises:
            MismatchError: ranks log a name in two ways, or a value of :meth:`same` differs (on
                every rank; what was logged is kept).
            InputError: a value of some rank cannot be counted (likewise).
            StateError: another rank has raised the error of its flush before.
            Exception: what a writer has raised, on its rank, once this flush is made or under way.
        """
        unasked = self._end_flush()
        # Some ranks may have asked, and flush as usual: so all are told once more, by a StateError.
        of_all = isinstance(unasked, DistmetricsError) and not isinstance(unasked, StateError)
        if of_all:
            what = f"the flush before failed, and nobody has asked: {in_short(unasked)}"
            self._window.problem = self._window.problem or Problem("StateError", what)
        try:
            row = self._flushed(step, wait=wait)
        except Exception as error:
            if unasked is None:
                raise
            if of_all:
                raise unasked from error
            raise error from unasked
        if unasked is not None:
            if isinstance(row, Handle):
                row.is_heard = of_all
            raise unasked
        return row

    def _flushed(self, step: int | None, *, wait: bool) -> Row | Handle[Row]:
        self._flushes += 1
        comm = chosen(self._comm)
        mine = self._window.snapshot(comm.device)
        then = None
        if comm.whole.rank == 0 and self._writers:
            step = self._flushes if step is None else step
            then = partial(write, self._writers, step=step)
        known = self._known
        handle = None if wait else start(lambda twin: flushed(mine, known, comm=twin), comm, then)
        self._window.clear()
        if handle is not None:
            self._flush = handle, mine
            return handle
        try:
            row = flushed(mine, known, comm=comm)
        except DistmetricsError:  # on every rank: nobody has counted it
            self._window.add(mine.totals)
            raise
        if then is not None:
            then(row)
        return row

    def _end_flush(self) -> Exception | None:
        """Wait for the flush under way; return its error, or a writer's, if nobody has asked.

        Other ranks may have asked, so it must not keep this one from what they do next.
        """
        if self._flush is None:
            return None
        (handle, mine), self._flush = self._flush, None
        handle.wait()
        if isinstance(handle.error, DistmetricsError):
            self._window.add(mine.totals)
        if not handle.is_heard:
            try:
                handle.result()
            except Exception as error:  # noqa: BLE001  (raised by who calls this)
                return error
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank has logged since the last flush, for a checkpoint."""
        if (unasked := self._end_flush()) is not None:
            raise unasked
        return {**self._window.state(), "flushes": self._flushes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Add a state of :meth:`state_dict`; with fewer ranks than before call it for several."""
        self._window.load(state)
        self._flushes = max(self._flushes, state["flushes"])
