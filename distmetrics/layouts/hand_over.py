"""How a rank that has values gives the result of a call, or its error, to ranks that have none."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from distmetrics.collectives.exchange import check_memory, exchange, inline_capacity
from distmetrics.collectives.header import Header
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.communicator import Communicator, numbered
from distmetrics.errors import DistmetricsError, InputTypeError, StateError, error_class
from distmetrics.message import Message, Size, decode, encode, reading


class Ended(NamedTuple):
    """How a call has ended on this rank: with a result or an error."""

    result: Any = None
    error: Exception | None = None

    def get(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


class HandedError(Message, frozen=True):
    """An error that a rank hands over; its ranks are the job's."""

    kind: str
    what: str
    likely: str
    do: str
    notes: tuple[str, ...]
    per_rank: tuple[tuple[int, str], ...]
    peers: tuple[int, ...]

    def __post_init__(self) -> None:
        error_class(self.kind)

    def of_rank(self, rank: int) -> DistmetricsError:
        """Return the error as it is raised on a rank of the job."""
        error = error_class(self.kind)(
            self.what,
            per_rank=dict(self.per_rank),
            notes=self.notes,
            likely=self.likely,
            do=self.do,
            rank=rank,
            peers=self.peers,
        )
        error.is_of_job = True
        return error


class HandedOver(Message, frozen=True):
    """What a rank hands over: the serialized result, whose bytes come apart, or an error."""

    nbytes: Size = 0
    error: HandedError | None = None


def hand_over(comm: Communicator, src: int, mine: Ended) -> Ended:
    """Give what rank ``src`` has ended with to all ranks of ``comm``.

    One round if it fits inline, as numbers do; else one more. A result that is not data becomes an
    error on every rank.
    """
    data, message = torch.empty(0, dtype=torch.uint8), HandedOver()
    if comm.rank == src:
        if mine.error is None:
            try:
                data = serialize(mine.result)
            except InputTypeError as error:
                kind, why = type(mine.result).__name__, error.what
                what = f"the result, a {kind}, cannot be given to ranks without values: {why}"
                refused = InputTypeError(what, rank=src)
                refused.call_ranks(comm.members)
                mine = Ended(error=refused)
        message = HandedOver(data.numel(), None if mine.error is None else _handed(mine.error))
    data, capacity = data.to(comm.device), inline_capacity(comm.world_size)
    header = Header("what a layout hands over", body=encode(message))
    with numbered(comm):
        met = exchange(comm, header, data if data.numel() <= capacity else data[:0])
        met.agree()
        theirs = decode(HandedOver, met.headers()[src].body, "what it hands over", src)
        sent = met.move()[src]
        if theirs.nbytes > capacity:
            check_memory(comm, theirs.nbytes)
            sent = comm.broadcast(data if comm.rank == src else data.new_empty(theirs.nbytes), src)
        if comm.rank == src:
            return mine
        if theirs.error is not None:
            return Ended(error=theirs.error.of_rank(comm.members[comm.rank]))
        with reading("what it hands over", src):
            return Ended(deserialize(sent, accelerator=comm.device))


def _handed(error: Exception) -> HandedError:
    if not isinstance(error, DistmetricsError):  # of a metric's compute(), say
        what = f"the call failed on the ranks with values: {type(error).__name__}: {error}"
        error = StateError(what)
    # A class of the user's own is told as ours that it extends.
    ours = [each for each in type(error).__mro__ if each.__module__ == DistmetricsError.__module__]
    texts = ours[0].__name__, error.what, error.likely, error.do
    return HandedError(*texts, error.notes, tuple(error.per_rank.items()), error.peers)
