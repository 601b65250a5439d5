"""Run a function as every rank of a small world: threads of this process, or real processes over gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from distmetrics.comm.outcome import Outcome, settle
from distmetrics.comm.threads import ThreadWorld
from distmetrics.launch.processes import launch

__all__ = ["Backend", "Outcome", "outcomes", "run"]

Backend = Literal["threads", "gloo"]


def run(world_size: int, fn: Callable[..., Any], *args: Any, backend: Backend = "threads") -> list[Any]:
    """Call ``fn(comm, *args)`` on every rank of a new world; return each rank's result in rank order.

    Inside, ``comm`` is also the communicator in force, so ``distmetrics.all_gather(x)`` needs no ``comm=``.

    Args:
        world_size: number of ranks.
        fn: what each rank does. With ``backend="gloo"`` it must be picklable, or cloudpickle installed.
        args: passed to every rank: the same objects with threads, copies with gloo.
        backend: "threads" is fast, strict, and decides deadlock exactly; "gloo" is the real thing.

    Raises:
        Exception: the error of the rank that failed first, with notes of what the others raised. Ranks that were only
            let down by it never hide it.

    >>> run(2, lambda comm: comm.rank)
    [0, 1]
    """
    return settle(outcomes(world_size, fn, *args, backend=backend))


def outcomes(world_size: int, fn: Callable[..., Any], *args: Any, backend: Backend = "threads") -> list[Outcome]:
    """Like :func:`run`, but return how each rank ended (``.value`` or ``.error``) and raise nothing."""
    if backend == "threads":
        return ThreadWorld(world_size).outcomes(fn, *args)
    if backend == "gloo":
        return launch(fn, world_size, *args, backend="gloo")
    raise ValueError(f"backend must be 'threads' or 'gloo', got {backend!r}")
