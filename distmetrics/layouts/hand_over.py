"""How a rank that has values gives the result of a call, or its error, to ranks that have none."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from distmetrics.collectives.exchange import exchange
from distmetrics.collectives.header import Header
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.communicator import Communicator, numbered
from distmetrics.comm.verdict import KINDS, Verdict
from distmetrics.errors import DistmetricsError, InputTypeError, StateError
from distmetrics.message import decode, encode, reading


class Ended(NamedTuple):
    """How a call has ended on this rank: with a result or an error."""

    result: Any = None
    error: Exception | None = None

    def get(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


def _told(error: Exception) -> Verdict:
    """Return what ranks without values are told of an error; of a user's class as one of ours."""
    if not isinstance(error, DistmetricsError) or error.code not in KINDS:  # of compute(), say
        what = f"the call failed on the ranks with values: {type(error).__name__}: {error}"
        error = StateError(what)
    return Verdict(
        error.code,  # type: ignore[arg-type]
        error.what,
        error.peers,
        error.per_rank,
        error.likely,
        error.do,
        error.notes,
    )


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
        body = encode(_told(mine.error))
    with numbered(comm):
        met = exchange(comm, Header("what a layout hands over", body=body), data.to(comm.device))
        met.agree()
        sent, body = met.move(sparing=True)[src], met.headers()[src].body
    if comm.rank == src:
        return mine
    with reading("what it hands over", src):
        if body:
            told = decode(Verdict, body, "what it hands over", src)
            return Ended(error=told.error(comm.members[comm.rank]))
        return Ended(deserialize(sent))
