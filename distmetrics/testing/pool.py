"""Worlds of processes that stay: a check runs hundreds of jobs, and starting processes is slow.

A job that fails on some rank ends its world, since the process group may be broken; the next job
starts a new one.
"""

import contextlib
import faulthandler
import functools
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from distmetrics.comm.verdict import Outcome
from distmetrics.errors import PeerLostError
from distmetrics.launch.spawn import launch, pickled

_LIMIT = 30.0  # seconds that a job may take before its rank ends itself


class Pool:
    """One world of gloo processes, started when it is first needed.

    >>> import operator
    >>> with pools() as pool_of:
    ...     [outcome.value for outcome in pool_of(2).outcomes(operator.attrgetter("rank"))]
    [0, 1]
    """

    def __init__(self, world_size: int, limit: float = _LIMIT) -> None:
        self.world_size = world_size
        self.limit = limit
        self._ranks: list[Connection] = []
        self._launcher: threading.Thread | None = None
        self._ended: list[Outcome] = []

    def outcomes(self, job: Callable[..., Any]) -> list[Outcome]:
        """Call ``job(comm)`` on every rank; return how each ended.

        A rank that hangs is ended after the limit.
        """
        work = pickled(job)
        if not self._ranks:
            self._start()
        # A rank that is dead neither hears nor answers; the launcher knows how it ended.
        for connection in self._ranks:
            with contextlib.suppress(OSError):
                connection.send_bytes(work)
        replies: dict[int, Outcome] = {}
        for rank, connection in enumerate(self._ranks):
            with contextlib.suppress(EOFError, OSError):
                value = pickle.loads(connection.recv_bytes())  # noqa: S301  (see launch/spawn.py)
                replies[rank] = Outcome(rank, value)
        if len(replies) < self.world_size:
            self.close()
            for ended in self._ended:
                error = ended.error or PeerLostError(
                    f"rank {ended.rank} ended without a word", rank=ended.rank
                )
                replies.setdefault(ended.rank, Outcome(ended.rank, error=error))
        return [outcome for _, outcome in sorted(replies.items())]

    def _start(self) -> None:
        pairs = [Pipe() for _ in range(self.world_size)]
        self._ranks = [ours for ours, _ in pairs]
        args = ([theirs for _, theirs in pairs],)
        self._launcher = threading.Thread(target=self._launch, args=args, daemon=True)
        self._launcher.start()

    def _launch(self, pipes: Sequence[Connection]) -> None:
        """Run the world to its end."""
        self._ended = launch(_serve, self.world_size, self.limit, pipes=pipes)

    def close(self) -> None:
        """End the world."""
        for connection in self._ranks:
            connection.close()
        self._ranks = []
        if self._launcher is not None:
            self._launcher.join()
            self._launcher = None


def _serve(comm: Any, pipe: Connection, limit: float) -> None:
    """Be one rank: run jobs until the parent hangs up; warnings are silenced, as on threads."""
    warnings.simplefilter("ignore")
    with Path(os.devnull).open("w") as nowhere:
        while True:
            try:
                job = pickle.loads(pipe.recv_bytes())  # noqa: S301  (see launch/spawn.py)
            except EOFError:
                return
            faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
            try:
                reply = pickled(job(comm))
            finally:
                faulthandler.cancel_dump_traceback_later()
            pipe.send_bytes(reply)


@contextlib.contextmanager
def pools(limit: float = _LIMIT) -> Iterator[Callable[[int], Pool]]:
    """Yield what gives the pool of a world size, made once; all of them end with the block."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(
            lambda size: stack.enter_context(contextlib.closing(Pool(size, limit)))
        )
