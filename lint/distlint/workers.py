"""``map`` over processes."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Protocol, TypeVar

_GivenT = TypeVar("_GivenT")
_GotT = TypeVar("_GotT")


class DoAll(Protocol):
    """``map``, wherever the work is done."""

    def __call__(self, function: Callable[[_GivenT], _GotT], given: Sequence[_GivenT], /) -> Iterable[_GotT]:
        """The results in the order of what was given."""


def here(function: Callable[[_GivenT], _GotT], given: Sequence[_GivenT]) -> Iterable[_GotT]:
    """In this process."""
    return map(function, given)


def _settle() -> None:
    """Trees are made of very many objects that live until their file is done: looking for garbage finds none."""
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)


def _start() -> str:
    """How processes begin: as copies of this one where that is safe, since importing all again takes long."""
    return "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"


@contextmanager
def workers(jobs: int) -> Iterator[DoAll]:
    """A ``map`` over processes, or over nothing but this one."""
    if jobs == 1:
        yield here
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context(_start()), initializer=_settle) as pool:

        def do_all(function: Callable[[_GivenT], _GotT], given: Sequence[_GivenT]) -> Iterable[_GotT]:
            if len(given) <= jobs:
                return map(function, given)
            return pool.map(function, given, chunksize=max(1, min(16, len(given) // (4 * jobs))))

        yield do_all
