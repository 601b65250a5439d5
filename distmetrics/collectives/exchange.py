"""The one round that every collective of ours starts with: headers, with small data inline.

A transport may abort when ranks send different numbers of bytes, so what the round sends has one
size, whatever the call: a frame. It holds the header and, where it fits, the data (inline). So a
call of small tensors costs one collective, and ranks that mean different calls still meet in equal
frames and learn of it. What does not fit goes in a second round, after the headers have been
compared (rendezvous).

In a large world even frames are too much to send to everyone. There the first round is one
max-reduce of a hash h and of -h: the two maxima are each other's negatives only where all ranks
sent the same, and then nobody needs to read what the others mean. Frames follow only where the
hashes differ.
"""

from __future__ import annotations

import functools
import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.buckets import from_bytes, to_bytes
from distmetrics.collectives.header import Header, agree
from distmetrics.collectives.history import (
    KEPT,
    check_lines,
    check_reads,
    reads_of,
    refuse_histories,
)
from distmetrics.comm.call_lock import take
from distmetrics.comm.communicator import Communicator, gather_padded
from distmetrics.errors import InputError, Ranks
from distmetrics.message import LARGEST_DATA, LARGEST_HEADER, decode, not_ours, reading

# Mark and protocol; bytes of the header and of the data; the number of this call, and a hash of
# what else the rank has done; what it has read of streams.
_HEAD = struct.Struct(f"<5Q{2 * KEPT}Q")
_LENGTH = struct.Struct(">Q")  # of a header, before its compressed bytes; starts with a zero
_MARK = 0x646D6574_00000008  # "dmet", protocol 8
_SMALL_WORLD = 8  # ranks up to which a frame has room for twice as much
_LARGEST, _SMALLEST, _TOTAL = 1 << 14, 1 << 12, 1 << 22
# Ranks above which hashes are compared first; up to here all frames together are at most 4 MiB.
LARGE_WORLD = 256
HASH_BYTES = 32
_WASTE = 1.1  # padded bytes for one of data


class _Frame(NamedTuple):
    """One rank's frame, read: its header's bytes so far, sizes, past, and data that came inline."""

    header: bytes
    header_bytes: int
    data_bytes: int
    step: tuple[int, int]
    reads: tuple[int, ...]
    data: Tensor


def frame_size(world_size: int) -> int:
    """Return the bytes of a frame: 32 KiB up to 8 ranks, else 16 KiB; all of them at most 4 MiB.

    Up to there the time of an all_gather is its latency, so the room costs nothing (measured on
    gloo, between other work: 32 KiB takes as long as 16 between 2 ranks, 64 KiB a fourth longer). A
    multiple of 64, so that the data, which starts after a quarter or less, is aligned for every
    dtype.

    >>> [frame_size(world_size) >> 10 for world_size in (2, 8, 9, 256, 1024)]
    [32, 32, 16, 16, 4]
    """
    if world_size <= _SMALL_WORLD:
        return 2 * _LARGEST
    return max(_SMALLEST, min(_LARGEST, _TOTAL // world_size // 64 * 64))


def header_area(world_size: int) -> int:
    """Return how many bytes of a frame are the header's; the data starts behind them."""
    return min(_LARGEST, frame_size(world_size)) // 4


def inline_capacity(world_size: int) -> int:
    """Return how many bytes of data ride along in a frame: what the header leaves.

    None in a large world, where data that can be reduced is, and so does not grow with the world.
    """
    return 0 if world_size > LARGE_WORLD else frame_size(world_size) - header_area(world_size)


@dataclass(frozen=True, slots=True)
class Round:
    """The first round of a call: every rank's encoded header and frame, and this rank's data.

    In a world of one there are no frames.
    """

    comm: Communicator
    blobs: tuple[bytes, ...]
    mine: Tensor
    frames: Sequence[_Frame] = ()

    def headers(self) -> list[Header]:
        """Return every rank's header.

        Raises:
            MismatchError: a peer has sent something else.
        """
        return [header_of(blob, self.blobs.index(blob)) for blob in self.blobs]

    def agree(self, do: str = "") -> None:
        """Check that all ranks make the same call; see :func:`~header.agree`."""
        header = header_of(self.blobs[0], 0)
        if header.problem is not None or any(blob != self.blobs[0] for blob in self.blobs):
            agree(self.headers(), self.comm.rank, do=do)

    def move(self, *, sparing: bool = False) -> list[Tensor]:
        """Return every rank's data, once all ranks mean the same call.

        What did not fit into a frame takes a second round; ``sparing`` of bytes, one a rank where
        padding to the longest would be a waste.

        Raises:
            MismatchError: ranks make equal calls in another order (on every rank).
            InputError: this process has no memory for what comes.
        """
        comm = self.comm
        if not self.frames:
            return [self.mine]
        if len({*self.blobs}) > 1 or comm.state.uneven_lines:
            check_lines(comm, self.headers())
        capacity = inline_capacity(comm.world_size)
        sizes = [each.data_bytes if each.data_bytes > capacity else 0 for each in self.frames]
        if not any(sizes):
            return [frame.data for frame in self.frames]
        check_memory(comm, max(sizes))
        own = self.mine[: sizes[comm.rank]]
        if sparing and len(sizes) * max(sizes) > _WASTE * sum(sizes):
            rows = _broadcast_each(comm, own, sizes)
        else:
            rows = gather_padded(comm, own, max(sizes))
        followed = zip(self.frames, sizes, rows, strict=True)
        return [row[:size] if size else frame.data for frame, size, row in followed]


def _broadcast_each(comm: Communicator, data: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return every rank's run of bytes; anything for those of size 0."""
    rows = []
    for rank, size in enumerate(sizes):
        row = data if rank == comm.rank else data.new_empty(size)
        rows.append(comm.broadcast(row, rank) if size else row)
    return rows


def exchange(comm: Communicator, header: Header, data: Tensor) -> Round:
    """Exchange headers, and data as far as it fits. Who calls it then agrees, or plans.

    Args:
        comm: who talks.
        header: what this rank is about to do.
        data: uint8 on ``comm.device``; travels in the frame where it fits.

    Raises:
        DivergedError, MismatchError: ranks are at other calls (on every rank).
        InputError: ranks have read other batches of a stream (on every rank).
    """
    if comm.world_size == 1:
        return Round(comm, (header.encode(),), data)
    take(comm, header.call())
    comm.state.count += 1
    if comm.world_size > LARGE_WORLD and _all_alike(comm, header, data):
        frame = _Frame(header.encode(), 0, data.numel(), (0, 0), reads_of(comm), data)
        frames = [frame] * comm.world_size
    else:
        frames = _gather_frames(comm, header, data)
    if len({frame.step for frame in frames}) > 1:
        raise refuse_histories(comm)
    if any(any(frame.reads) for frame in frames):
        check_reads(comm, [frame.reads for frame in frames])
    blobs = tuple(_inflated(frame.header, rank) for rank, frame in enumerate(frames))
    return Round(comm, blobs, data, frames)


def exchange_alike(comm: Communicator, header: Header, data: Tensor, do: str = "") -> list[Tensor]:
    """Exchange the data of a call that must be the same on all ranks; return every rank's.

    Args:
        comm: who talks.
        header: what this rank is about to do.
        data: uint8 on ``comm.device``.
        do: advice for shapes that differ, where the operation has some.
    """
    met = exchange(comm, header, data)
    met.agree(do)
    return met.move()


def check_memory(comm: Communicator, longest: int) -> None:
    """Refuse more data than this process has memory for; it is a peer who says how much comes."""
    try:
        torch.empty(longest * comm.world_size, dtype=torch.uint8, device=comm.device)
    except RuntimeError as error:
        raise InputError(
            [
                f"up to {longest} bytes of each of {comm.world_size} ranks follow, for which ",
                Ranks([comm.rank]),
                " has no memory",
            ],
            rank=comm.rank,
        ) from error


def _all_alike(comm: Communicator, header: Header, data: Tensor) -> bool:
    """True if all ranks have the same header and sizes, by a max-reduce of a few numbers."""
    text = header.encode() + _head(comm, 0, data)
    digest = hashlib.blake2b(text, digest_size=HASH_BYTES).digest()
    numbers = torch.tensor(struct.unpack(f"<{HASH_BYTES // 8}q", digest), device="cpu")
    numbers >>= 1  # so that -h is in range as well
    both = torch.cat([numbers, -numbers]).to(comm.device)
    largest, smallest = comm.all_reduce(both, "max").chunk(2)
    return torch.equal(largest, -smallest)


def _head(comm: Communicator, header_bytes: int, data: Tensor) -> bytes:
    state = comm.state
    sizes = header_bytes, data.numel()
    return _HEAD.pack(_MARK, *sizes, state.count, state.past, *reads_of(comm))


def _gather_frames(comm: Communicator, header: Header, data: Tensor) -> list[_Frame]:
    """Send and receive frames; a header too long for its area gets a round for the rest."""
    world_size = comm.world_size
    start = header_area(world_size)
    room = start - _HEAD.size
    blob = header.encode()
    if len(blob) > room:
        blob = _deflated(blob)
    head = _head(comm, len(blob), data) + blob[:room]
    frame = from_bytes(head.ljust(frame_size(world_size), b"\0")).to(comm.device)
    if data.numel() <= inline_capacity(world_size):
        frame[start : start + data.numel()].copy_(data)
    rows = enumerate(comm.all_gather(frame))
    frames = [_read_frame(row, world_size, rank) for rank, row in rows]
    missing = [each.header_bytes - len(each.header) for each in frames]
    if any(missing):
        tails = gather_padded(comm, from_bytes(blob[room:]).to(comm.device), max(missing))
        for rank, count in enumerate(missing):
            whole = frames[rank].header + to_bytes(tails[rank][:count])
            frames[rank] = frames[rank]._replace(header=whole)
    return frames


def _read_frame(row: Tensor, world_size: int, rank: int) -> _Frame:
    """Read one rank's frame; raise MismatchError for what is no frame."""
    start = header_area(world_size)
    area = to_bytes(row[:start])
    mark, header_bytes, data_bytes, count, past, *reads = _HEAD.unpack_from(area)
    if mark != _MARK:
        raise not_ours("its mark is another", rank)
    if header_bytes > LARGEST_HEADER or data_bytes > LARGEST_DATA:
        raise not_ours("it announces more bytes than any rank sends", rank)
    header = area[_HEAD.size : _HEAD.size + header_bytes]
    inline = data_bytes if data_bytes <= inline_capacity(world_size) else 0
    data = row[start : start + inline]
    return _Frame(header, header_bytes, data_bytes, (count, past), tuple(reads), data)


@functools.lru_cache(maxsize=64)
def header_of(blob: bytes, rank: int) -> Header:
    """Return the header that a rank has sent.

    Raises:
        MismatchError: it has sent something else.
    """
    return decode(Header, blob, "what it tells of its call", rank)


@functools.lru_cache(maxsize=64)
def _deflated(blob: bytes) -> bytes:
    return _LENGTH.pack(len(blob)) + zlib.compress(blob, level=1)


@functools.lru_cache(maxsize=64)
def _inflated(blob: bytes, rank: int) -> bytes:
    """Return the bytes of a header, of which no more are made than were announced."""
    if blob[:1] != b"\0":  # of a length
        return blob
    with reading("what it tells of its call", rank):
        (length,) = _LENGTH.unpack_from(blob)
        if not 0 < length <= LARGEST_HEADER:
            raise ValueError(f"a length of {length} bytes")
        inflater = zlib.decompressobj()
        plain = inflater.decompress(blob[_LENGTH.size :], length)
        if len(plain) < length or not inflater.eof:
            raise ValueError(f"another length than {length} bytes")
        return plain
