"""Worlds of processes that stay: a check runs hundreds of jobs, and starting processes is slow.

A job that fails on some rank ends its world, since the process group may be broken; the next job
starts a new one.
"""

import contextlib
import faulthandler
import functools
import os
import pickle
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from distmetrics.errors import PeerLostError
from distmetrics.launch.pickles import pickled
from distmetrics.launch.processes import launch
from distmetrics.liveness.outcome import Outcome

_NO_RANK = b""
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
        self._ranks: dict[int, Connection] = {}
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
        for connection in self._ranks.values():
            with contextlib.suppress(OSError):
                connection.send_bytes(work)
        replies: dict[int, Outcome] = {}
        for rank, connection in self._ranks.items():
            with contextlib.suppress(EOFError, OSError):
                value = pickle.loads(connection.recv_bytes())  # noqa: S301  (our own ranks' bytes)
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
        with tempfile.TemporaryDirectory(prefix="distmetrics-") as folder:
            address = str(Path(folder) / "jobs")
            with Listener(address, family="AF_UNIX") as listener:
                self._launcher = threading.Thread(target=self._launch, args=(address,), daemon=True)
                self._launcher.start()
                for _ in range(self.world_size):
                    connection = listener.accept()
                    rank = connection.recv_bytes()
                    if rank == _NO_RANK:
                        break
                    self._ranks[int(rank)] = connection

    def _launch(self, address: str) -> None:
        """Run the world to its end; ranks that ended before they came must not be waited for."""
        self._ended = launch(_serve, self.world_size, address, self.limit)
        # Most often nobody listens any more.
        with contextlib.suppress(OSError), Client(address, family="AF_UNIX") as waiting:
            waiting.send_bytes(_NO_RANK)

    def close(self) -> None:
        """End the world."""
        for connection in self._ranks.values():
            connection.close()
        self._ranks = {}
        if self._launcher is not None:
            self._launcher.join()
            self._launcher = None


def _serve(comm: Any, address: str, limit: float) -> None:
    """Be one rank: run jobs until the parent hangs up; warnings are silenced, as on threads."""
    warnings.simplefilter("ignore")
    with Client(address, family="AF_UNIX") as parent, Path(os.devnull).open("w") as nowhere:
        parent.send_bytes(str(comm.rank).encode())
        while True:
            try:
                job = pickle.loads(parent.recv_bytes())  # noqa: S301  (our own parent's bytes)
            except EOFError:
                return
            faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
            try:
                reply = pickled(job(comm))
            finally:
                faulthandler.cancel_dump_traceback_later()
            parent.send_bytes(reply)


@contextlib.contextmanager
def pools(limit: float = _LIMIT) -> Iterator[Callable[[int], Pool]]:
    """Yield what gives the pool of a world size, made once; all of them end with the block."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(
            lambda size: stack.enter_context(contextlib.closing(Pool(size, limit)))
        )
