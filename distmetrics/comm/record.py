"""A communicator that writes down what passes through it: for tests, benchmarks and the demo."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from distmetrics.comm.base import Communicator, Op, Passing
from distmetrics.comm.replace import Name, Replacing

_COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One call of the transport: its operation and the bytes that this rank put in."""

    op: str
    nbytes: int


class RecordingCommunicator(Passing):
    """Passes every call on to ``inner`` and keeps a transcript in ``calls``.

    >>> from distmetrics.comm.current import SingleCommunicator
    >>> comm = RecordingCommunicator(SingleCommunicator())
    >>> comm.barrier()
    >>> comm.calls
    [Recorded(op='barrier', nbytes=0)]
    """

    def __init__(self, inner: Communicator) -> None:
        self.inner = inner
        self.calls: list[Recorded] = []

    def _note(self, op: str, *tensors: Tensor) -> None:
        self.calls.append(Recorded(op, sum(x.numel() * x.element_size() for x in tensors)))

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Note and pass on."""
        self._note("all_gather", x)
        return self.inner.all_gather(x)

    def all_reduce(self, x: Tensor, op: Op) -> Tensor:
        """Note and pass on."""
        self._note(f"all_reduce {op}", x)
        return self.inner.all_reduce(x, op)

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Note and pass on."""
        self._note("all_to_all", *parts)
        return self.inner.all_to_all(parts)

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Note and pass on."""
        self._note("broadcast", x)
        return self.inner.broadcast(x, src)

    def barrier(self) -> None:
        """Note and pass on."""
        self._note("barrier")
        self.inner.barrier()


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
