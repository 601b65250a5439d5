"""A communicator that writes down what passes through it: for tests, benchmarks and the demo."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist
from torch import Tensor

from distmetrics.comm.communicator import Communicator, PassingCommunicator
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


class RecordingCommunicator(PassingCommunicator):
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
