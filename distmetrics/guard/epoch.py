"""A block that all ranks must come through with the same calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from distmetrics.collectives.exchange import exchange
from distmetrics.collectives.manifest import Manifest, check
from distmetrics.comm.base import Communicator
from distmetrics.comm.current import chosen, whole_of
from distmetrics.comm.group import GroupCommunicator
from distmetrics.comm.sites import call_site
from distmetrics.liveness.settings import in_force


@contextmanager
def guarded_epoch(name: str = "", *, comm: Communicator | None = None) -> Iterator[None]:
    """Check at the end of the block that all ranks came through it with the same calls.

    It finds the rank that left a loop early where the next collective would have paired up with
    another's. Where the block raises on one rank, the others are told at once, also if that rank
    catches the error and goes on.

    Args:
        name: shown in errors.
        comm: default the communicator in force; of a layout, all ranks of its mesh.

    Raises:
        MismatchError: a rank is at another call, or has made another number of calls (on every
            rank).
        PeerLostError: another rank left the block by an exception.

    >>> from distmetrics import ThreadWorld, all_reduce
    >>> def epoch(comm):
    ...     with guarded_epoch("train"):
    ...         for _ in range(2):
    ...             all_reduce(torch.tensor(1))
    >>> ThreadWorld(2).run(epoch)
    [None, None]
    """
    comm = whole_of(chosen(comm))
    if in_force().mode == "off":
        yield
        return
    before = _calls(comm)
    try:
        yield
    except BaseException as error:
        if isinstance(comm, GroupCommunicator):
            comm.give_up(error, f"guarded_epoch {name!r}" if name else "guarded_epoch")
        raise
    agree_on(
        comm,
        Manifest(
            "end of guarded_epoch", name, f"{_calls(comm) - before} collectives", site=call_site()
        ),
    )


def agree_on(comm: Communicator, manifest: Manifest) -> None:
    """Compare what all ranks are about to do, and send nothing else.

    Raises:
        MismatchError: they differ (on every rank).
    """
    nothing = torch.empty(0, dtype=torch.uint8, device=comm.device)
    exchange(comm, manifest, nothing, nothing, partial(check, rank=comm.rank))


def _calls(comm: Communicator) -> int:
    return int(getattr(comm, "calls", 0))
