"""Communicators that see what passes through them: for tests, benchmarks and the demo."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from torch import Tensor

from distmetrics.comm.communicator import Communicator, Op, PassingCommunicator

R = TypeVar("R")


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

    >>> from distmetrics.comm.communicator import SingleCommunicator
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
