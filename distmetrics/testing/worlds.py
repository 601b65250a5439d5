"""Worlds of ranks: threads of this process, real processes, and processes that stay for many jobs.

A check runs hundreds of jobs, and starting processes is slow.
"""

import contextlib
import faulthandler
import functools
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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

    Inside, ``comm`` is also the current communicator, so ``distmetrics.all_gather(x)`` needs no
    ``comm=``.

    Args:
        world_size: number of ranks.
        fn: what each rank does. With ``backend="gloo"`` it must be picklable, or cloudpickle
            installed.
        args: passed to every rank: the same objects with threads, copies with gloo.
        backend: "threads": fast, strict, and deadlock is decided exactly; "gloo": real processes.
        faults: of :mod:`distmetrics.testing.faults`, each of which strikes one rank.
        limit: seconds after which ranks that have not ended are stopped; threads need none to find
            a deadlock.
        hash_seeds: ``PYTHONHASHSEED`` of each rank, on gloo: sets of texts then differ in order
            between ranks, as in most jobs. :func:`~distmetrics.testing.shards.hash_seeds` draws
            them.
        layout: sizes by the usual names of axes, such as ``{"dp": 2, "tp": 2}``: ``comm`` is then
            the layout of all ranks.

    Raises:
        Exception: the error of the rank that failed first, with notes of what the others raised.
            It is never one that another rank's failure has caused.
        InputTypeError: ``fn`` or ``args`` cannot be pickled, on gloo.

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
    """Do what :func:`run` does, but return the :class:`Outcome` of each rank, error or value.

    Arguments are those of :func:`run`.

    Raises:
        ValueError: there is no such backend, ``world_size`` is below 1, or not every process has a
            hash seed.
        InputError: a fault is of a rank that the world does not have.
        InputTypeError: ``fn`` or ``args`` cannot be pickled, on gloo.

    >>> first, second = outcomes(2, lambda comm: 6 // comm.rank)
    >>> second.value, type(first.error).__name__
    (6, 'ZeroDivisionError')
    """
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


@contextlib.contextmanager
def worlds(backend: Backend, limit: float = 30.0) -> Iterator[RunWorld]:
    """Yield what runs jobs as every rank of a world; processes end with the block.

    A rank that is busy for ``limit`` seconds is ended.

    Raises:
        InputError: there is no such backend.
    """
    if backend == "threads":
        yield lambda size, job: ThreadWorld(size).outcomes(job)
        return
    if backend != "gloo":
        raise InputError(f"backend must be 'threads' or 'gloo', got {backend!r}")
    pools: dict[int, _Pool] = {}

    def run_world(size: int, job: Job) -> list[Outcome]:
        if size not in pools:
            pools[size] = _Pool(size, limit)
        ended = pools[size].outcomes(job)
        if any(outcome.error for outcome in ended):
            del pools[size]  # has ended, since its process group may be broken
        return ended

    try:
        yield run_world
    finally:
        for pool in pools.values():
            pool.close()


class _Pool:
    """One world of gloo processes for many jobs, of which one that fails on some rank ends it."""

    def __init__(self, world_size: int, limit: float) -> None:
        ours, theirs = zip(*(Pipe() for _ in range(world_size)), strict=True)
        self._ranks: Sequence[Connection] = ours
        self._launcher = ThreadPoolExecutor(1)
        self._ended = self._launcher.submit(launch, _serve, world_size, limit, pipes=theirs)

    def outcomes(self, job: Job) -> list[Outcome]:
        """Call ``job(comm)`` on every rank; return how each ended."""
        work = pickled(job)
        # A rank that is dead neither hears nor answers; the launcher knows how it ended.
        for connection in self._ranks:
            with contextlib.suppress(OSError):
                connection.send_bytes(work)
        replies: dict[int, Outcome] = {}
        for rank, connection in enumerate(self._ranks):
            with contextlib.suppress(EOFError, OSError):
                value = pickle.loads(connection.recv_bytes())  # noqa: S301  (see launch/spawn.py)
                replies[rank] = Outcome(rank, value)
        if len(replies) < len(self._ranks):
            for ended in self.close():
                lost = PeerLostError(f"rank {ended.rank} ended without a word", rank=ended.rank)
                replies.setdefault(ended.rank, replace(ended, error=ended.error or lost))
        return [outcome for _, outcome in sorted(replies.items())]

    def close(self) -> list[Outcome]:
        """End the world; return how its processes ended."""
        for connection in self._ranks:
            connection.close()
        self._launcher.shutdown()
        return self._ended.result()


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
