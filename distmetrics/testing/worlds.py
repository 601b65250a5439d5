"""Worlds of ranks: threads of this process, real processes, and processes that stay for many jobs.

A check runs hundreds of jobs, and starting processes is slow, so that a :class:`Pool` keeps them.
"""

import contextlib
import faulthandler
import functools
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from distmetrics.comm.communicator import Communicator, use
from distmetrics.comm.threads import ThreadWorld
from distmetrics.comm.verdict import Outcome, settle
from distmetrics.errors import InputError, PeerLostError
from distmetrics.launch.spawn import launch, pickled
from distmetrics.layouts.communicator import layout as layout_of
from distmetrics.testing.faults import Fault, faulty, killed_as_lost

Backend = Literal["threads", "gloo"]


class RunOptions(TypedDict, total=False):
    """How a function is run as every rank."""

    backend: Backend
    faults: Sequence[Fault]
    limit: float | None
    hash_seeds: Sequence[int]
    layout: Mapping[str, int] | None


def run(
    world_size: int, fn: Callable[..., Any], *args: Any, **options: Unpack[RunOptions]
) -> list[Any]:
    """Call ``fn(comm, *args)`` on every rank of a new world; return the results in rank order.

    Inside, ``comm`` is also the communicator in force, so ``distmetrics.all_gather(x)`` needs no
    ``comm=``.

    Args:
        world_size: number of ranks.
        fn: what each rank does. With ``backend="gloo"`` it must be picklable, or cloudpickle
            installed.
        args: passed to every rank: the same objects with threads, copies with gloo.
        backend: "threads" is fast, strict, and decides deadlock exactly; "gloo" is the real thing.
        faults: of :mod:`distmetrics.testing.faults`, each of which strikes one rank.
        limit: seconds after which processes that have not ended are stopped; threads need none for
            a deadlock.
        hash_seeds: ``PYTHONHASHSEED`` of each rank, on gloo: sets of texts are in another order on
            every rank, as they are in most jobs. :func:`~distmetrics.testing.shards.hash_seeds`
            draws them.
        layout: sizes by the usual names of axes, such as ``{"dp": 2, "tp": 2}``: ``comm`` is the
            layout of all ranks then.

    Raises:
        Exception: the error of the rank that failed first, with notes of what the others raised.
            Ranks that were only let down by it never hide it.

    >>> run(2, lambda comm: comm.rank)
    [0, 1]
    """
    return settle(outcomes(world_size, fn, *args, **options))


def outcomes(
    world_size: int,
    fn: Callable[..., Any],
    *args: Any,
    backend: Backend = "threads",
    faults: Sequence[Fault] = (),
    limit: float | None = None,
    hash_seeds: Sequence[int] = (),
    layout: Mapping[str, int] | None = None,
) -> list[Outcome]:
    """Return how each rank of :func:`run` ended, in ``.value`` or ``.error``; raise nothing."""
    if backend not in ("threads", "gloo"):
        raise ValueError(f"backend must be 'threads' or 'gloo', got {backend!r}")
    if hash_seeds and (backend == "threads" or len(hash_seeds) < world_size):
        raise ValueError(
            "hash_seeds needs backend='gloo' and a seed for each rank: threads share one "
            "interpreter"
        )
    struck = faulty(fn, faults, world_size)
    if layout is not None:
        struck = functools.partial(_over, dict(layout), struck)
    if backend == "threads":
        return killed_as_lost(ThreadWorld(world_size).outcomes(struck, *args, limit=limit))
    variables = [{"PYTHONHASHSEED": str(seed)} for seed in hash_seeds]
    # Forked ranks would share the order of the server that they fork from.
    start_method = "spawn" if variables else "forkserver"
    return launch(
        struck, world_size, *args, limit=limit, start_method=start_method, variables=variables
    )


def _over(sizes: dict[str, int], fn: Callable[..., Any], comm: Communicator, *args: Any) -> Any:
    with use(layout_of.of(sizes, comm=comm)) as ranks:
        return fn(ranks, *args)


Job = Callable[[Communicator], Any]
RunWorld = Callable[[int, Job], list[Outcome]]  # runs a job on every rank of a world of a size
_LIMIT = 30.0  # seconds that a job may take before its rank ends itself


@contextlib.contextmanager
def worlds(backend: Backend, limit: float = _LIMIT) -> Iterator[RunWorld]:
    """Yield what runs jobs as every rank of a world; processes end with the block.

    Raises:
        InputError: there is no such backend.
    """
    if backend == "threads":
        yield lambda size, job: ThreadWorld(size).outcomes(job)
        return
    if backend != "gloo":
        raise InputError(f"backend must be 'threads' or 'gloo', got {backend!r}")
    with contextlib.ExitStack() as stack:
        pool_of = functools.cache(
            lambda size: stack.enter_context(contextlib.closing(Pool(size, limit)))
        )
        yield lambda size, job: pool_of(size).outcomes(job)


class Pool:
    """One world of gloo processes, started when it is first needed.

    A job that fails on some rank ends its world, since the process group may be broken; the next
    job starts a new one.
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
