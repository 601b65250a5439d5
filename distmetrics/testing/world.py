"""Run a function as every rank of a small world: of threads, or of real processes over gloo."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

from distmetrics.comm.communicator import Communicator, use
from distmetrics.comm.threads import ThreadWorld
from distmetrics.comm.verdict import Outcome, settle
from distmetrics.launch.spawn import launch
from distmetrics.layouts.communicator import layout as layout_of
from distmetrics.testing.faults import Fault
from distmetrics.testing.faults.communicator import faulty, killed_as_lost

Backend = Literal["threads", "gloo"]


class Options(TypedDict, total=False):
    """How a function is run as every rank."""

    backend: Backend
    faults: Sequence[Fault]
    limit: float | None
    hash_seeds: Sequence[int]
    layout: Mapping[str, int] | None


def run(
    world_size: int, fn: Callable[..., Any], *args: Any, **options: Unpack[Options]
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
        struck = partial(_over, dict(layout), struck)
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
