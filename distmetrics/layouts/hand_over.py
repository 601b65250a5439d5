"""What a call has given on the ranks that have values, for those that have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.exchange import check_memory, exchange, inline_capacity
from distmetrics.collectives.manifest import Manifest
from distmetrics.collectives.reading import reading
from distmetrics.collectives.serialize import deserialize, serialize
from distmetrics.comm.base import Communicator, job_ranks, numbered
from distmetrics.comm.one_call import in_one_call
from distmetrics.errors import DistmetricsError, InputTypeError, StateError, error_class


class Outcome(NamedTuple):
    """What a call has given: a result or an error."""

    result: Any = None
    error: Exception | None = None

    @classmethod
    def of(cls, make: Callable[[], Any]) -> Outcome:
        """Make a call; of its error the other ranks must hear before it is raised."""
        try:
            return cls(make())
        except Exception as error:  # noqa: BLE001  (raised by get())
            return cls(error=error)

    def get(self) -> Any:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result


def hand_over(comm: Communicator, src: int, mine: Outcome) -> Outcome:
    """Give the outcome of rank ``src`` to all ranks of ``comm``.

    One round where it fits into a frame, as numbers do; else one more. A result that is no data
    becomes an error on every rank.
    """
    data = torch.empty(0, dtype=torch.uint8)
    if comm.rank == src:
        mine, data = _sendable(mine, job_ranks(comm)[src])
    data = data.to(comm.device)
    capacity = inline_capacity(comm.world_size)
    manifest = Manifest("what a layout hands over", details=data.numel())

    def sizes_of(blobs: Sequence[bytes]) -> list[int]:
        manifests = [Manifest.decode(blob, rank) for rank, blob in enumerate(blobs)]
        with reading("how much it hands over"):
            return [int(each.details) for each in manifests]

    def rounds() -> Tensor:
        riding = data if data.numel() <= capacity else data[:0]
        sizes, runs = exchange(comm, manifest, riding, data[:0], sizes_of)
        if sizes[src] <= capacity:
            return runs[src][0]
        check_memory(comm, sizes[src])
        own = data if comm.rank == src else data.new_empty(sizes[src])
        return comm.broadcast(own, src)

    sent = in_one_call(comm, manifest.call, rounds)
    if comm.rank == src:
        return mine
    with numbered(comm), reading("what it hands over", src):
        return _received(deserialize(sent, accelerator=comm.device), job_ranks(comm)[comm.rank])


def _sendable(outcome: Outcome, rank: int) -> tuple[Outcome, Tensor]:
    """Return an outcome that can be sent, and its bytes; ``rank``: this one, in the job."""
    if outcome.error is None:
        try:
            return outcome, serialize([outcome.result])
        except InputTypeError as error:
            kind = type(outcome.result).__name__
            what = f"the result, a {kind}, cannot be given to ranks without values: {error.what}"
            refused = InputTypeError(what, rank=rank)
            refused.is_of_job = True
            outcome = Outcome(error=refused)
    told = outcome.error
    if not isinstance(told, DistmetricsError):  # of a metric's compute(), say
        told = StateError(
            f"the call failed on the ranks with values: {type(told).__name__}: {told}"
        )
    texts = (type(told).__name__, told.what, told.likely, told.do)
    return outcome, serialize([None, *texts, [*told.notes], told.per_rank, [*told.peers]])


def _received(parts: list[Any], rank: int) -> Outcome:
    """Return a peer's outcome, as it is raised on ``rank``; raise anything for what is none."""
    if len(parts) == 1:
        return Outcome(parts[0])
    _, kind, what, likely, do, notes, per_rank, peers = parts
    error = error_class(kind)(
        str(what),
        per_rank={int(each): str(line) for each, line in per_rank.items()},
        notes=map(str, notes),
        likely=str(likely),
        do=str(do),
        rank=rank,
        peers=map(int, peers),
    )
    error.is_of_job = True
    return Outcome(error=error)
