"""What travels between the processes of a world: jobs to them, and how they ended back."""

import contextlib
import importlib.util
import io
import pickle
import signal
import sys
import traceback
import types
from collections import ChainMap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from distmetrics.comm.verdict import Outcome
from distmetrics.errors import DistmetricsError, InputTypeError
from distmetrics.launch.preflight import find_unpicklable


def has_script() -> bool:
    """True if other processes can import this ``__main__``: not at a prompt, in ``-c`` or stdin."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return file is not None and Path(file).exists()


@contextlib.contextmanager
def without_missing_script() -> Iterator[None]:
    """Keep multiprocessing, in the block, from running ``<stdin>`` as a script in new processes."""
    names = vars(sys.modules["__main__"])
    if has_script() or "__file__" not in names:
        yield
        return
    file = names.pop("__file__")
    try:
        yield
    finally:
        names["__file__"] = file


def pickled(job: Any) -> bytes:
    """Return a job's pickle for another process; with cloudpickle, lambdas and local classes too.

    What was defined at a prompt, in a notebook, in ``-c`` or on stdin travels by value as well.

    Raises:
        InputTypeError: it cannot be pickled.
    """
    by_value = importlib.util.find_spec("cloudpickle") is not None
    if by_value and not has_script():
        return pickled_by_value(job)
    try:
        return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if by_value:
            return pickled_by_value(job)
        raise InputTypeError(
            f"this cannot be sent to another process: {error}",
            likely="a lambda, a local function or class, an open file or a lock.",
            do="move it to the top level of a module, or pip install cloudpickle.",
        ) from error


def pickled_by_value(job: Any) -> bytes:
    """Return a pickle that carries the code of functions and classes that can't be imported.

    Errors in the other process name the user's file: cloudpickle leaves it out from 3.1.3 on.

    Raises:
        ImportError: cloudpickle is not installed.
    """
    import cloudpickle

    table = cloudpickle.CloudPickler.dispatch_table
    reduce_code = table[types.CodeType]

    def reduce_with_file(code: types.CodeType) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _code_of_file, (code.co_filename, *reduce_code(code))

    class ByValuePickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap({types.CodeType: reduce_with_file}, table)

    data = io.BytesIO()
    ByValuePickler(data).dump(job)
    return data.getvalue()


def _code_of_file(
    filename: str, make: Callable[..., types.CodeType], arguments: tuple[Any, ...]
) -> types.CodeType:
    return make(*arguments).replace(co_filename=filename)


def pack_outcome(outcome: Outcome) -> bytes:
    """Return the pickle of how a rank ended; what can't travel becomes an error that says so."""
    trace = "".join(traceback.format_exception(outcome.error)) if outcome.error is not None else ""
    try:
        data = pickle.dumps((outcome.value, outcome.error, trace))
        # An exception with a required argument pickles, but does not come back.
        pickle.loads(data)  # noqa: S301
    except Exception as problem:  # noqa: BLE001  (any class may raise anything when it is pickled)
        if outcome.error is not None:
            return pickle.dumps((None, DistmetricsError(trace, rank=outcome.rank), trace))
        error = InputTypeError(
            f"rank {outcome.rank} returned a {type(outcome.value).__name__} that can't be sent: "
            f"{problem}",
            notes=[
                f"  {part}" for part in find_unpicklable(outcome.value, "result", by_value=False)
            ],
            do="return tensors, numbers, or what can be pickled.",
            rank=outcome.rank,
        )
        return pickle.dumps((None, error, ""))
    return data


def unpack_outcome(rank: int, data: bytes) -> Outcome:
    """Return how a rank ended; the traceback of its error is the error's cause.

    Unpickling runs the child's code. It came through a pipe that only this process and its child
    hold, and the child runs this user's code on this machine: it could do the same without us. What
    ranks send each other, maybe from another machine, is never read so.
    """
    value, error, trace = pickle.loads(data)  # noqa: S301
    if error is not None:
        error.__cause__ = _RemoteTraceback(trace)
    return Outcome(rank, value, error)


class _RemoteTraceback(Exception):  # noqa: N818  (never raised: shows a traceback as a cause)
    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def exit_reason(code: int) -> str:
    """Return in a few words how a process ended.

    >>> exit_reason(-9), exit_reason(3)
    ('was killed by SIGKILL', 'ended with exit code 3')
    """
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
