"""Worlds of real processes that stay: a check runs hundreds of jobs, and starting processes takes a
second each time.

A job that fails on some rank ends its world, since the process group may be broken; the next job
starts a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from distmetrics.errors import PeerLostError
from distmetrics.launch.pickles import pickled
from distmetrics.launch.processes import launch
from distmetrics.liveness.outcome import Outcome

_NONE = b"none"  # instead of a rank's number: ranks ended before they came
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
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._ended: list[Outcome] = []

    def outcomes(self, job: Callable[..., Any]) -> list[Outcome]:
        """Call ``job(comm)`` on every rank; return how each ended. A rank that hangs is ended after
        the limit.
        """
        work = pickled(job)
        if not self._ranks:
            self._start()
        replies: dict[int, Outcome] = {}
        for rank in self._ranks.values():
            with contextlib.suppress(OSError):  # it died meanwhile: the launcher tells
                rank.send_bytes(work)
        for number, rank in self._ranks.items():
            with contextlib.suppress(EOFError, OSError):  # likewise
                replies[number] = Outcome(number, pickle.loads(rank.recv_bytes()))  # noqa: S301  (our own ranks' bytes)
        if len(replies) == self.world_size:
            return [replies[rank] for rank in range(self.world_size)]
        self.close()
        return [self._told(rank, replies) for rank in range(self.world_size)]

    def _told(self, rank: int, replies: dict[int, Outcome]) -> Outcome:
        """Return a rank's reply, or how the launcher saw it end."""
        if rank in replies:
            return replies[rank]
        ended = next((outcome for outcome in self._ended if outcome.rank == rank), None)
        if ended is not None and ended.error is not None:
            return ended
        return Outcome(rank, error=PeerLostError(f"rank {rank} ended without a word", rank=rank))

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="distmetrics-")
        address = str(Path(self._folder.name) / "jobs")
        with Listener(address, family="AF_UNIX") as listener:
            self._ended = []
            self._thread = threading.Thread(target=self._launch, args=(address,), daemon=True)
            self._thread.start()
            for _ in range(self.world_size):
                rank = listener.accept()
                name = rank.recv_bytes()
                if name == _NONE:
                    break
                self._ranks[int(name)] = rank
        self._ranks = dict(sorted(self._ranks.items()))

    def _launch(self, address: str) -> None:
        self._ended = launch(_serve, self.world_size, address, self.limit)
        with (
            contextlib.suppress(OSError),
            Client(address, family="AF_UNIX") as waiting,
        ):  # nobody, most often
            waiting.send_bytes(_NONE)

    def close(self) -> None:
        """End the world."""
        for rank in self._ranks.values():
            rank.close()
        self._ranks = {}
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _serve(comm: Any, address: str, limit: float) -> None:
    """Be one rank: run jobs until the parent hangs up."""
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
    """Give the pool of a world size, made once; all of them end with the block."""
    made: dict[int, Pool] = {}

    def pool_of(world_size: int) -> Pool:
        return made.setdefault(world_size, Pool(world_size, limit))

    def close() -> None:
        for pool in made.values():
            pool.close()

    atexit.register(close)
    try:
        yield pool_of
    finally:
        close()
        atexit.unregister(close)
