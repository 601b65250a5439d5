"""What travels between the processes of a world: jobs to them, and how they ended back."""

from __future__ import annotations

import contextlib
import pickle
import sys
import traceback
from collections.abc import Iterator
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
    """Pickle what is to be sent to another process; lambdas and local classes too, with cloudpickle
    installed.

    So does what was defined at a prompt, in a notebook, in ``-c`` or on stdin.

    Raises:
        InputTypeError: it cannot be pickled.
    """
    try:
        import cloudpickle
    except ImportError:
        cloudpickle = None
    if cloudpickle is not None and not has_script():
        return bytes(cloudpickle.dumps(job))
    try:
        return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if cloudpickle is not None:
            return bytes(cloudpickle.dumps(job))
        raise InputTypeError(
            f"this cannot be sent to another process: {error}",
            likely="a lambda, a local function or class, an open file or a lock.",
            do="move it to the top level of a module, or pip install cloudpickle.",
        ) from error


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
