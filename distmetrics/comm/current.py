"""The communicator in force: what a collective uses where the caller passes none."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from distmetrics.comm.base import Communicator, Op, check_parts, check_src
from distmetrics.errors import InputTypeError


class SingleCommunicator:
    """The communicator of an ordinary script.

    >>> SingleCommunicator().all_gather(torch.ones(2))
    [tensor([1., 1.])]
    """

    rank = 0
    world_size = 1
    device = torch.device("cpu")

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Return a copy of ``x`` in a list."""
        return [x.detach().clone()]

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Return a copy of ``x``: one rank's sum, product, maximum and minimum."""
        return x.detach().clone()

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return a copy of the only part in a list."""
        check_parts(parts, 1)
        return [parts[0].detach().clone()]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Return a copy of ``x``; the only valid source is rank 0."""
        check_src(src, 1)
        return x.detach().clone()

    def barrier(self) -> None:
        """Return at once: there is nobody to wait for."""


_in_force: ContextVar[Communicator | None] = ContextVar("distmetrics_communicator", default=None)
_single = SingleCommunicator()
# Returns the communicator of the job; set by comm.group, which knows torch.distributed.
_find_job: Callable[[], Communicator | None] | None = None


def current() -> Communicator:
    """Return the communicator in force.

    That is the one of the nearest :func:`use`; else ``torch.distributed``'s default group where a
    job has one; else a world of one.

    >>> current().world_size
    1
    """
    comm = _in_force.get()
    if comm is None and _find_job is not None:
        comm = _find_job()
    return _single if comm is None else comm


def find_job_by(find: Callable[[], Communicator | None]) -> None:
    """Let :func:`current` call ``find``, which returns the job's communicator, or None."""
    global _find_job
    _find_job = find


def in_force() -> Communicator | None:
    """Return the communicator of the nearest :func:`use`, if there is one."""
    return _in_force.get()


def chosen(comm: Communicator | None) -> Communicator:
    """Return ``comm`` if a caller gave one, else the communicator in force.

    Raises:
        InputTypeError: ``comm`` is no communicator.
    """
    if comm is None:
        return current()
    if not hasattr(comm, "device") or not hasattr(comm, "all_gather"):
        raise InputTypeError(
            f"comm= must be a communicator, got a {type(comm).__name__}",
            do="for a process group pass distmetrics.GroupCommunicator(group).",
        )
    return comm


def whole_of(comm: Communicator) -> Communicator:
    """Return who talks to all ranks, of which those of a layout are the shards."""
    whole: Communicator = getattr(comm, "whole", comm)
    return whole


@contextmanager
def use(comm: Communicator) -> Iterator[Communicator]:
    """Put ``comm`` in force inside the block, for this thread or task alone."""
    token = _in_force.set(comm)
    try:
        yield comm
    finally:
        _in_force.reset(token)
