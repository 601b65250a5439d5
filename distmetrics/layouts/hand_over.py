"""How a rank that has values gives the result of a call, or its error, to ranks that have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import torch

from distmetrics.collectives.exchange import exchange
from distmetrics.collectives.header import Header
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.communicator import Communicator, numbered
from distmetrics.errors import DistmetricsError, InputTypeError, StateError, error_class
from distmetrics.message import Message, decode, encode, reading


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
    per_rank: Mapping[int, str]
    peers: tuple[int, ...]

    @classmethod
    def of(cls, error: Exception) -> HandedError:
        """Return what ranks without values are told of an error."""
        if not isinstance(error, DistmetricsError):  # of a metric's compute(), say
            what = f"the call failed on the ranks with values: {type(error).__name__}: {error}"
            error = StateError(what)
        values = {name: getattr(error, name) for name in cls.__struct_fields__[1:]}
        # A class of the user's own is told as ours that it extends.
        ours = [x for x in type(error).__mro__ if x.__module__ == DistmetricsError.__module__]
        return cls(ours[0].__name__, **values)

    def of_rank(self, rank: int) -> DistmetricsError:
        """Return the error as it is raised on a rank of the job."""
        values = msgspec.structs.asdict(self)
        error = error_class(values.pop("kind"))(rank=rank, **values)
        error.is_of_job = True
        return error


def hand_over(comm: Communicator, src: int, mine: Ended) -> Ended:
    """Give what rank ``src`` has ended with to all ranks of ``comm``.

    One round if it fits inline, as numbers do; else one more. A result that is not data becomes an
    error on every rank.
    """
    data, body = torch.empty(0, dtype=torch.uint8), b""
    if comm.rank == src and mine.error is None:
        try:
            data = serialize(mine.result)
        except InputTypeError as error:
            kind, why = type(mine.result).__name__, error.what
            what = f"the result, a {kind}, cannot be given to ranks without values: {why}"
            refused = InputTypeError(what, rank=src)
            refused.call_ranks(comm.members)
            mine = Ended(error=refused)
    if comm.rank == src and mine.error is not None:
        body = encode(HandedError.of(mine.error))
    with numbered(comm):
        met = exchange(comm, Header("what a layout hands over", body=body), data.to(comm.device))
        met.agree()
        sent, body = met.move(sparing=True)[src], met.headers()[src].body
    if comm.rank == src:
        return mine
    with reading("what it hands over", src):
        if body:
            theirs = decode(HandedError, body, "what it hands over", src)
            return Ended(error=theirs.of_rank(comm.members[comm.rank]))
        return Ended(deserialize(sent))
