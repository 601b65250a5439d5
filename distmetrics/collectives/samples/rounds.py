"""Rounds in which each rank sends tensors of its own, with little more than their own bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from distmetrics.collectives.exchange import check_memory, exchange, inline_capacity
from distmetrics.collectives.manifest import Manifest, agree_on_tree, testify
from distmetrics.collectives.pack import LeafSpec, layout, pack, unpack
from distmetrics.collectives.reading import reading
from distmetrics.comm.base import Communicator, gather_padded
from distmetrics.comm.one_call import in_one_call

Check = Callable[[Sequence[bytes]], list[Manifest]]
_WASTE = 1.1  # padded bytes for one of data, above which each rank sends to all in turn


def exchange_parts(
    comm: Communicator,
    manifest: Manifest,
    parts: Sequence[Tensor],
    check: Check | None = None,
) -> tuple[list[Manifest], list[list[Tensor]]]:
    """Exchange tensors of any number and shape; return every rank's manifest and tensors.

    Args:
        comm: who talks.
        manifest: what this rank is about to do, its leaves left out.
        parts: this rank's.
        check: reads all manifests, and raises, the same on every rank, if they don't go together.
    """
    where = layout(parts)
    run = pack(parts, where, comm.device)
    leaves = tuple([LeafSpec.of("", part) for part in parts])
    mine = replace(manifest, leaves=leaves)
    testify(comm, mine, {f"part {place}": part for place, part in enumerate(parts, 1)})
    capacity = inline_capacity(comm.world_size)
    rides = run if run.numel() <= capacity else run[:0]

    def agreed(blobs: Sequence[bytes]) -> list[Manifest]:
        manifests = decode_all(blobs)
        agree_on_tree(manifests, comm.rank)
        return manifests

    def rounds() -> tuple[list[Manifest], list[Tensor]]:
        manifests, pairs = exchange(comm, mine, rides, run[:0], check or agreed)
        if comm.world_size == 1:
            return manifests, [run]
        sizes = []
        for theirs in manifests:
            size = layout(theirs.leaves).nbytes
            sizes.append(size if size > capacity else 0)
        rows = _moved(comm, run, sizes)
        runs = []
        for size, row, (inline, _) in zip(sizes, rows, pairs, strict=True):
            runs.append(row[:size] if size else inline)
        return manifests, runs

    manifests, runs = in_one_call(comm, mine.call, rounds)
    received = []
    for rank, (theirs, data) in enumerate(zip(manifests, runs, strict=True)):
        with reading("its samples", rank):
            received.append(unpack(data, layout(theirs.leaves)))
    return manifests, received


def decode_all(blobs: Sequence[bytes]) -> list[Manifest]:
    """Return every rank's manifest."""
    manifests = []
    for rank, blob in enumerate(blobs):
        manifests.append(Manifest.decode(blob, rank))
    return manifests


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
