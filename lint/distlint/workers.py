"""``map`` over processes."""

from __future__ import annotations

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


@contextmanager
def workers(jobs: int) -> Iterator[DoAll]:
    """A ``map`` over processes, or over nothing but this one."""
    if jobs == 1:
        yield here
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:

        def do_all(function: Callable[[_GivenT], _GotT], given: Sequence[_GivenT]) -> Iterable[_GotT]:
            if len(given) <= jobs:
                return map(function, given)
            return pool.map(function, given, chunksize=max(1, min(16, len(given) // (4 * jobs))))

        yield do_all
