"""What travels between the processes of a world: jobs to them, and how they ended back."""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import traceback
import types
from collections import ChainMap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from distmetrics.errors import DistmetricsError, InputTypeError
from distmetrics.liveness.outcome import Outcome
from distmetrics.preflight import find_unpicklable


def has_script() -> bool:
    """Whether another process can import this one's ``__main__``: not from a prompt, a notebook,
    ``-c`` or stdin.
    """
    file = getattr(sys.modules["__main__"], "__file__", None)
    return file is not None and Path(file).exists()


@contextlib.contextmanager
def without_a_script_that_is_none() -> Iterator[None]:
    """Keep multiprocessing, in the block, from running a script named ``<stdin>`` in the processes
    that it starts.
    """
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
    try:
        if not has_script():
            return pickled_by_value(job)
    except ImportError:
        pass
    try:
        return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        try:
            return pickled_by_value(job)
        except ImportError:
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

    class ByValuePickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        dispatch_table = ChainMap(
            {types.CodeType: _reduce_code}, cloudpickle.CloudPickler.dispatch_table
        )

    data = io.BytesIO()
    ByValuePickler(data).dump(job)
    return data.getvalue()


def _reduce_code(code: types.CodeType) -> tuple[Callable[..., types.CodeType], tuple[Any, ...]]:
    import cloudpickle

    make, arguments = cloudpickle.CloudPickler.dispatch_table[types.CodeType](code)
    return _code_of_file, (code.co_filename, make, arguments)


def _code_of_file(
    filename: str, make: Callable[..., types.CodeType], arguments: tuple[Any, ...]
) -> types.CodeType:
    return make(*arguments).replace(co_filename=filename)


def packed(outcome: Outcome) -> bytes:
    """Pickle how a rank ended; an error or a value that can't travel becomes an error that says so."""
    trace = "".join(traceback.format_exception(outcome.error)) if outcome.error is not None else ""
    try:
        data = pickle.dumps((outcome.value, outcome.error, trace))
        pickle.loads(data)  # noqa: S301  (an exception with a required argument pickles, but does not come back)
    except Exception as problem:  # noqa: BLE001  (any class may raise anything from its own pickling)
        if outcome.error is not None:
            return pickle.dumps((None, DistmetricsError(trace, rank=outcome.rank), trace))
        parts = find_unpicklable(outcome.value, "result", by_value=False)
        text = f"rank {outcome.rank} returned a {type(outcome.value).__name__} that can't be sent: {problem}"
        text = (
            "\n  ".join([text, *map(str, parts)])
            + "\nDo:     return tensors, numbers, or what can be pickled."
        )
        return pickle.dumps((None, InputTypeError(text, rank=outcome.rank), ""))
    return data


def unpacked(rank: int, data: bytes) -> Outcome:
    """Return how a rank ended; where its error came from is shown with it."""
    value, error, trace = pickle.loads(data)  # noqa: S301  (our own child's bytes)
    if error is not None:
        error.__cause__ = _RemoteTraceback(trace)
    return Outcome(rank, value, error)


class _RemoteTraceback(Exception):  # noqa: N818  (never raised: it shows the other process's traceback as a cause)
    def __str__(self) -> str:
        return f"\n{self.args[0]}"
