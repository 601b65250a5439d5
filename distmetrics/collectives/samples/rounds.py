"""Rounds in which each rank sends tensors of its own, with little more than their own bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from distmetrics.collectives.buckets import LeafSpec, layout, pack, unpack
from distmetrics.collectives.exchange import Round, check_memory, exchange, inline_capacity
from distmetrics.collectives.header import Header, agree_on_tree
from distmetrics.collectives.message import reading
from distmetrics.comm.communicator import Communicator, gather_padded

_WASTE = 1.1  # padded bytes for one of data, above which each rank sends to all in turn


def exchange_parts(
    comm: Communicator, header: Header, parts: Sequence[Tensor]
) -> list[list[Tensor]]:
    """Exchange tensors of any number and shape in an agreed call; return every rank's tensors."""
    sending = Sending.of(comm, header, parts)
    headers = sending.met.headers()
    agree_on_tree(headers, comm.rank)
    return sending.receive(headers)


@dataclass(frozen=True, slots=True)
class Sending:
    """Tensors of any number and shape on their way, once headers have been exchanged.

    Attributes:
        met: the first round.
        run: this rank's tensors, packed.
    """

    met: Round
    run: Tensor

    @classmethod
    def of(cls, comm: Communicator, header: Header, parts: Sequence[Tensor]) -> Sending:
        """Exchange headers, and tensors as far as they fit.

        Args:
            comm: who talks.
            header: what this rank is about to do, its leaves left out.
            parts: this rank's tensors.
        """
        run = pack(parts, layout(parts), comm.device)
        mine = header.but(leaves=tuple([LeafSpec.of("", part) for part in parts]))
        if comm.wants_proof:
            named = {f"part {place}": part for place, part in enumerate(parts, 1)}
            comm.witness(mine.content(), named)
        fits = run.numel() <= inline_capacity(comm.world_size)
        return cls(exchange(comm, mine, run if fits else run[:0]), run)

    def receive(self, headers: Sequence[Header]) -> list[list[Tensor]]:
        """Return every rank's tensors, once all ranks mean the same call."""
        comm, runs = self.met.comm, [self.run]
        inline = self.met.move()
        if comm.world_size > 1:
            capacity = inline_capacity(comm.world_size)
            sizes = [layout(theirs.leaves).nbytes for theirs in headers]
            sizes = [size if size > capacity else 0 for size in sizes]
            rows = _moved(comm, self.run, sizes)
            zipped = zip(sizes, rows, inline, strict=True)
            runs = [row[:size] if size else small for size, row, (small, _) in zipped]
        received = []
        for rank, (theirs, data) in enumerate(zip(headers, runs, strict=True)):
            with reading("its samples", rank):
                received.append(unpack(data, layout(theirs.leaves)))
        return received


def _moved(
    comm: Communicator,
    run: Tensor,
    sizes: Sequence[int],
) -> list[Tensor]:
    """Return every rank's run of bytes; nothing for those of size 0."""
    if not any(sizes):
        return [run[:0]] * len(sizes)
    longest = max(sizes)
    check_memory(comm, longest)
    if comm.world_size * longest <= _WASTE * sum(sizes):
        own = run[: sizes[comm.rank]]
        return gather_padded(comm, own, longest)
    rows = []
    for rank, size in enumerate(sizes):
        row = run[:0]
        if size:
            own = run if rank == comm.rank else run.new_empty(size)
            row = comm.broadcast(own, rank)
        rows.append(row)
    return rows
