"""What moves once all ids are known: digests of samples that came twice, then the samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.buckets import from_bytes, to_bytes
from distmetrics.collectives.header import Header, Problem
from distmetrics.collectives.message import reading
from distmetrics.collectives.samples.checks import check_repeats
from distmetrics.collectives.samples.columns import (
    check_parts,
    narrowed,
    parts_in,
    parts_of,
    sizes_of,
)
from distmetrics.collectives.samples.ids import Order
from distmetrics.collectives.samples.meeting import Shard
from distmetrics.collectives.samples.rounds import exchange_parts
from distmetrics.collectives.samples.schema import Column, Schema, columns_of, values_of
from distmetrics.collectives.wire import serialize
from distmetrics.comm.communicator import Communicator

ROUND = 1 << 24  # bytes of all ranks together that move at once
_DIGEST = 16  # bytes


@dataclass(frozen=True, slots=True)
class Moving:
    """One rank's side of what follows the first round.

    Attributes:
        comm: who talks.
        header: names the call.
        schema: of the samples of all ranks.
        order: of their ids.
        columns: every column with this rank's values; none where it has no samples.
    """

    comm: Communicator
    header: Header
    schema: Schema
    order: Order
    columns: list[tuple[Column, Any]]

    @classmethod
    def of(
        cls,
        comm: Communicator,
        header: Header,
        shard: Shard,
        schema: Schema,
        order: Order,
    ) -> Moving:
        """Prepare to move this rank's samples."""
        columns: list[tuple[Column, Any]] = []
        if len(shard.ids):
            values = values_of(schema, shard.tree)
            columns += zip((column for _, column in columns_of(schema)), values, strict=True)
        return cls(comm, header, schema, order, columns)

    def check_repeats(self) -> None:
        """Compare the samples whose ids came more than once; raise where they differ."""
        if len(self.order.repeated) == 0:
            return
        rows, _ = self.order.repeated_rows(self.comm.rank)
        header = self._header("what came twice")
        received = exchange_parts(self.comm, header, [self._digests(rows)])
        digests = torch.zeros((len(self.order.repeated), _DIGEST), dtype=torch.uint8)
        for rank, parts in enumerate(received):
            _, places = self.order.repeated_rows(rank)
            with reading("its digests", rank):
                (theirs,) = parts
                digests[places] = theirs.cpu().view(torch.uint8).reshape(len(places), _DIGEST)
        check_repeats(self.order, digests, self.comm.rank)

    def _digests(self, rows: Tensor) -> Tensor:
        """Return a digest of each of some samples of this rank."""
        digests = bytearray()
        columns = [values for _, values in self.columns]
        for row in rows.tolist():
            sample = to_bytes(serialize([values[row] for values in columns]))
            digests += hashlib.blake2b(sample, digest_size=_DIGEST).digest()
        return from_bytes(bytes(digests))

    def bounds(self, nbytes: int) -> list[tuple[int, int]]:
        """Return from where to where in the order of ids each round goes.

        Args:
            nbytes: of all samples.
        """
        count = len(self.order.numbers)
        if nbytes <= ROUND:
            return [(0, count)] if count else []
        sizes = torch.zeros(self.order.counts[self.comm.rank], dtype=torch.int64)
        for column, values in self.columns:
            sizes += sizes_of(column, values)
        received = exchange_parts(self.comm, self._header("sizes"), [narrowed(sizes)])
        per_rank = []
        for rank, parts in enumerate(received):
            with reading("its sizes", rank):
                (theirs,) = parts
                wide = theirs.to("cpu", torch.int64)
                per_rank.append(wide.reshape(self.order.counts[rank]).clamp(min=0))
        in_order = torch.cat(per_rank)[self.order.arrival]
        number = (in_order.cumsum(0) - in_order) // ROUND
        cuts = (number.diff().nonzero().view(-1) + 1).tolist()
        return [*zip([0, *cuts], [*cuts, count], strict=True)]

    def move(
        self,
        start: int,
        stop: int,
        problem: Problem | None = None,
    ) -> tuple[list[list[Tensor]], Tensor]:
        """Exchange the samples of some ids.

        Args:
            start: place of the first id.
            stop: the place after the last.
            problem: why this rank cannot go on; all ranks raise it.

        Returns: the columns' tensors of each rank that has some of them; for each id, the place of
            its sample among all of them.
        """
        rows, places = self.order.samples(start, stop)
        mine = rows[self.comm.rank]
        parts = []
        for column, values in self.columns:
            if len(mine) and problem is None:
                parts += parts_of(column, values, mine)
        header = self._header("samples").but(problem=problem)
        received = exchange_parts(self.comm, header, parts)
        sources = []
        for rank, theirs in enumerate(received):
            with reading("its samples", rank):
                self._check(theirs, len(rows[rank]))
            if len(rows[rank]):
                sources.append(theirs)
        return sources, places

    def end(self, problem: Problem | None) -> None:
        """Tell all ranks whether the last round's samples could be used; raise if not."""
        exchange_parts(self.comm, self._header("end").but(problem=problem), [])

    def _check(
        self,
        parts: Sequence[Tensor],
        count: int,
    ) -> None:
        """Raise anything where a peer's tensors are not ``count`` samples."""
        left = iter(parts)
        for _, column in columns_of(self.schema):
            if count and parts_in(column):
                check_parts(column, [next(left) for _ in range(parts_in(column))], count)
        if [*left]:
            raise ValueError("more tensors than there are columns")

    def _header(self, stage: str) -> Header:
        return self.header.but(op=f"{self.header.op}, {stage}")
