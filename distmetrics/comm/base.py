"""What a transport must offer, and the call of the user's that needs it.

A :class:`Communicator` moves equal shapes in rank order and never in place. Everything above it
(trees, uneven sizes, agreement, metrics) is built from these five calls, so a new transport is one
small class.
"""

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from distmetrics.comm.sites import call_site
from distmetrics.errors import DistmetricsError, Site

R = TypeVar("R")
Op = Literal["sum", "prod", "max", "min"]
_PAIRWISE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}


@runtime_checkable
class Communicator(Protocol):
    """One rank's end of a world: equal shapes and dtypes on all ranks, rank order, never in place.

    Attributes:
        rank: this rank, from 0.
        world_size: number of ranks.
        device: where the transport needs its tensors; callers move them there and back.
    """

    @property
    def rank(self) -> int:
        """This rank, from 0."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def device(self) -> torch.device:
        """Where the transport needs its tensors."""

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Return every rank's ``x``, in rank order."""

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Return the elementwise ``op`` over all ranks; the same bits on every rank."""

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Give ``parts[r]`` to rank r; return what each rank gave to this one, in rank order."""

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Return rank ``src``'s ``x``."""

    def barrier(self) -> None:
        """Return once every rank has called it."""


class Passing(ABC):
    """Base of communicators that pass their calls on to another one, ``inner``."""

    inner: Communicator

    @abstractmethod
    def pass_on(self, op: str, make: Callable[..., R], sent: list[Tensor], alone: R) -> R:
        """Return what a collective gives.

        Args:
            op: its operation.
            make: makes it; called with what is sent.
            sent: the tensors that this rank sends.
            alone: the result, had every other rank sent the same.
        """

    @property
    def rank(self) -> int:
        """Of the inner communicator."""
        return self.inner.rank

    @property
    def world_size(self) -> int:
        """Of the inner communicator."""
        return self.inner.world_size

    @property
    def device(self) -> torch.device:
        """Of the inner communicator."""
        return self.inner.device

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Pass on."""
        return self.pass_on("all_gather", self.inner.all_gather, [x], [x] * self.world_size)

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Pass on."""
        make = functools.partial(self.inner.all_reduce, op=op)
        return self.pass_on(f"all_reduce {op}", make, [x], x)

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Pass on."""

        def make(*sent: Tensor) -> list[Tensor]:
            return self.inner.all_to_all(sent)

        own = [parts[self.rank]] * self.world_size
        return self.pass_on("all_to_all", make, [*parts], own)

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Pass on."""
        make = functools.partial(self.inner.broadcast, src=src)
        return self.pass_on("broadcast", make, [x], x)

    def barrier(self) -> None:
        """Pass on."""
        self.pass_on("barrier", self.inner.barrier, [], None)


class Finished:
    """The handle of a call that is over before its caller sees it."""

    def wait(self, timeout: object = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True


def check_parts(parts: Sequence[Tensor], world_size: int) -> None:
    """Refuse parts of an all_to_all that are not one for each rank, or not alike."""
    if len(parts) != world_size:
        raise ValueError(
            f"all_to_all needs one part for each of {world_size} ranks, got {len(parts)}"
        )
    if len({(part.dtype, part.shape) for part in parts}) > 1:
        raise ValueError(
            f"all_to_all needs parts alike, got {', '.join(brief(p.dtype, p.shape) for p in parts)}"
        )


def check_src(src: int, world_size: int) -> None:
    """Refuse a source that is no rank."""
    if not 0 <= src < world_size:
        raise ValueError(f"broadcast from rank {src} in a world of {world_size}")


def fold(rows: Sequence[Tensor], op: Op) -> Tensor:
    """Reduce equal-shaped tensors in the order given, so that all ranks get the same bits.

    A fixed order of pairwise operations, where ``torch.sum(dim=0)`` may group terms differently on
    another processor.
    """
    return rows[0].clone() if len(rows) == 1 else functools.reduce(_PAIRWISE[op], rows)


def gather_padded(comm: Communicator, data: Tensor, longest: int) -> list[Tensor]:
    """Gather runs of bytes of different length, each padded to the longest.

    Padded further to a multiple of 16, so that each row may be viewed as any dtype.
    """
    padded = torch.zeros(-(-longest // 16) * 16, dtype=torch.uint8, device=comm.device)
    used = min(data.numel(), longest)
    padded[:used] = data[:used]
    return comm.all_gather(padded)


@dataclass(frozen=True, slots=True)
class Call:
    """A call in the user's terms: ``all_gather "val/f1" float32[10]``, and where it is made.

    ``exact`` is what a strict world compares besides the transport's own call: the destination of a
    gather, say, which a transport without gathers moves by an all_gather.
    """

    op: str
    detail: str = ""
    site: Site | None = None
    exact: tuple[Hashable, ...] = ()

    def __str__(self) -> str:
        text = f"{self.op} {self.detail}".strip()
        return f"{text}  {self.site or ''}".rstrip()


_call: ContextVar[Call | None] = ContextVar("distmetrics_call", default=None)


@contextlib.contextmanager
def in_call(call: Call) -> Iterator[None]:
    """Name the transport calls made inside by the user's call that needs them, for reports."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def job_ranks(comm: Any) -> Sequence[int]:
    """Return which ranks of the job those of a communicator are."""
    while (members := getattr(comm, "members", None)) is None:
        inner = getattr(comm, "inner", None)
        if inner is None:
            return range(comm.world_size)
        comm = inner
    ranks: Sequence[int] = members
    return ranks


@contextlib.contextmanager
def numbered(comm: object) -> Iterator[None]:
    """Give the ranks of an error of ours that the block raises the job's numbers."""
    try:
        yield
    except DistmetricsError as error:
        error.call_ranks(job_ranks(comm))
        raise


@contextlib.contextmanager
def reported(comm: object) -> Iterator[None]:
    """Have a report written, if one is wanted, where the block raises an error of ours."""
    try:
        with numbered(comm):
            yield
    except DistmetricsError as error:
        if report := getattr(comm, "report", None):
            report(error)
        raise


def under_way() -> Call | None:
    """Return the user's call that needs the transport calls of this moment, if one was named."""
    return _call.get()


def current_call(op: str, x: Tensor | None = None) -> Call:
    """Return the user's call that is under way, or describe a direct use of the transport."""
    return _call.get() or Call(op, "" if x is None else brief(x.dtype, x.shape), call_site())


def brief(dtype: torch.dtype, shape: Sequence[int]) -> str:
    """Return dtype and shape in short.

    >>> brief(torch.float32, (2, 3))
    'float32[2, 3]'
    """
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def innermost(comm: Any) -> Any:
    """Return the communicator that others pass their calls on to: all calls through it count."""
    while (inner := getattr(comm, "inner", None)) is not None:
        comm = inner
    return comm


def is_of_threads(comm: object) -> bool:
    """True if the ranks of a communicator, or of one that it wraps, are threads of a process."""
    return bool(getattr(innermost(comm), "shares_process", False))
