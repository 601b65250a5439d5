"""Communicators that see what passes through them: for tests, benchmarks and the demo."""

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist
from torch import Tensor

from distmetrics.comm.communicator import Communicator, Op, PassingCommunicator
from distmetrics.comm.patching import Name, Replacing

R = TypeVar("R")
_COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
)


class Recorded(NamedTuple):
    """One call of the transport: its operation and the bytes that this rank put in."""

    op: str
    nbytes: int


class InterceptingCommunicator(PassingCommunicator, ABC):
    """Base of communicators that see every collective before ``inner`` makes it."""

    @abstractmethod
    def pass_on(self, op: str, make: Callable[..., R], sent: list[Tensor], alone: R) -> R:
        """Return ``make(*sent)``, say; ``alone`` is the result, had all ranks sent the same."""

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Pass on."""
        return self.pass_on("all_gather", self.inner.all_gather, [x], [x] * self.world_size)

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Pass on."""
        return self.pass_on(f"all_reduce {op}", lambda x: self.inner.all_reduce(x, op), [x], x)

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Pass on."""
        own = [parts[self.rank]] * self.world_size
        return self.pass_on("all_to_all", lambda *sent: self.inner.all_to_all(sent), [*parts], own)

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Pass on."""
        return self.pass_on("broadcast", lambda x: self.inner.broadcast(x, src), [x], x)

    def barrier(self) -> None:
        """Pass on."""
        self.pass_on("barrier", self.inner.barrier, [], None)


class RecordingCommunicator(InterceptingCommunicator):
    """Passes every call on to ``inner`` and keeps a transcript in ``calls``.

    >>> from distmetrics.comm.communicator import (SingleCommunicator)
    >>> comm = RecordingCommunicator(SingleCommunicator())
    >>> comm.barrier()
    >>> comm.calls
    [Recorded(op='barrier', nbytes=0)]
    """

    def __init__(self, inner: Communicator) -> None:
        super().__init__(inner)
        self.calls: list[Recorded] = []

    def pass_on(self, op: str, make: Callable[..., R], sent: list[Tensor], alone: R) -> R:
        """Note and pass on."""
        self.calls.append(Recorded(op, sum(x.nbytes for x in sent)))
        return make(*sent)


@contextmanager
def counted_torch_calls() -> Iterator[Counter[str]]:
    """Count the calls of ``torch.distributed``'s collectives inside the block, whoever makes them.

    The functions are wrapped for the length of the block, by explicit wish, and put back whatever
    happens. For measuring peers; our own calls are better counted by
    :class:`RecordingCommunicator`.
    """
    calls: Counter[str] = Counter()

    def counting(name: str) -> Name:
        original = getattr(dist, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return original(*args, **kwargs)

        return Name(vars(dist), name, call)

    with Replacing().block(lambda: map(counting, _COLLECTIVES)):
        yield calls
