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

from distmetrics.collectives.buckets import align, from_bytes, to_bytes
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

# Mark and protocol; bytes of the header, of inline and of bulk data; the number of this call, and
# a hash of what else the rank has done; what it has read of streams.
_HEAD = struct.Struct(f"<6Q{2 * KEPT}Q")
_NO_READS = (0,) * (2 * KEPT)
_LENGTH = struct.Struct(">Q")  # of a header, before its compressed bytes; starts with a zero
_MARK = 0x646D6574_00000007  # "dmet", protocol 7
_SMALL_WORLD = 8  # ranks up to which a frame has room for twice as much
_LARGEST, _SMALLEST, _TOTAL = 1 << 14, 1 << 12, 1 << 22
# Ranks above which hashes are compared first; up to here all frames together are at most 4 MiB.
LARGE_WORLD = 256
HASH_BYTES = 32


class _Frame(NamedTuple):
    """One rank's frame, read: its header's bytes so far, sizes, past, inline data."""

    header: bytes
    header_bytes: int
    inline_bytes: int
    bulk_bytes: int
    step: tuple[int, int]
    reads: tuple[int, ...]
    inline: Tensor
    bulk: Tensor


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


def follows(inline_bytes: int, bulk_bytes: int, capacity: int) -> int:
    """Return how many bytes of one rank's data do not fit into its frame, and follow.

    >>> [follows(10, 40, capacity) for capacity in (64, 55, 9)]
    [0, 40, 50]
    """
    if inline_bytes > capacity:
        return inline_bytes + bulk_bytes
    return 0 if align(inline_bytes) + bulk_bytes <= capacity else bulk_bytes


def _data_in(frame: Tensor, inline_bytes: int, bulk_bytes: int, world_size: int) -> list[Tensor]:
    """Return where inline and bulk data lie in a frame; an empty run for what follows."""
    start, capacity = header_area(world_size), inline_capacity(world_size)
    inline = frame[start : start + (inline_bytes if inline_bytes <= capacity else 0)]
    if follows(inline_bytes, bulk_bytes, capacity):
        return [inline, frame[:0]]
    start += align(inline_bytes)
    return [inline, frame[start : start + bulk_bytes]]


@dataclass(frozen=True, slots=True)
class Round:
    """The first round of a call.

    Attributes:
        comm: who talks.
        blobs: every rank's header, encoded, in rank order.
        mine: this rank's data, inline and bulk.
        frames: every rank's; none in a world of one.
    """

    comm: Communicator
    blobs: tuple[bytes, ...]
    mine: tuple[Tensor, Tensor]
    frames: Sequence[_Frame] = ()

    def headers(self) -> list[Header]:
        """Return every rank's header.

        Raises:
            MismatchError: a peer has sent something else.
        """
        known = {
            blob: header_of(blob, self.blobs.index(blob)) for blob in dict.fromkeys(self.blobs)
        }
        return [known[blob] for blob in self.blobs]

    def agree(self, do: str = "") -> None:
        """Check that all ranks make the same call; see :func:`~header.agree`."""
        header = header_of(self.blobs[0], 0)
        if header.problem is not None or any(blob != self.blobs[0] for blob in self.blobs):
            agree(self.headers(), self.comm.rank, do=do)

    def move(self) -> list[tuple[Tensor, Tensor]]:
        """Return every rank's data, inline and bulk, once all ranks mean the same call.

        What did not fit into a frame takes a second round.

        Raises:
            MismatchError: ranks make equal calls in another order (on every rank).
            InputError: this process has no memory for what comes.
        """
        comm, (inline, bulk) = self.comm, self.mine
        if not self.frames:
            return [self.mine]
        if len({*self.blobs}) > 1 or comm.state.uneven_lines:
            check_lines(comm, self.headers())
        capacity = inline_capacity(comm.world_size)
        sizes = [follows(frame.inline_bytes, frame.bulk_bytes, capacity) for frame in self.frames]
        if not any(sizes):
            return [(frame.inline, frame.bulk) for frame in self.frames]
        rest = bulk if inline.numel() <= capacity else torch.cat([inline, bulk])
        check_memory(comm, max(sizes))
        rows = gather_padded(comm, rest[: sizes[comm.rank]], max(sizes))
        result = []
        for frame, size, row in zip(self.frames, sizes, rows, strict=True):
            split = max(0, size - frame.bulk_bytes)  # of what follows: inline data, then bulk data
            theirs = row[:split] if split else frame.inline
            result.append((theirs, row[split:size] if size else frame.bulk))
        return result


def exchange(
    comm: Communicator, header: Header, inline: Tensor, bulk: Tensor | None = None
) -> Round:
    """Exchange headers, and data as far as it fits. Who calls it then agrees, or plans.

    Args:
        comm: who talks.
        header: what this rank is about to do.
        inline: uint8 on ``comm.device``; travels in the frame where it fits.
        bulk: likewise; beside ``inline`` where that leaves room.

    Raises:
        DivergedError, MismatchError: ranks are at other calls (on every rank).
        InputError: ranks have read other batches of a stream (on every rank).
    """
    mine = inline, inline[:0] if bulk is None else bulk
    if comm.world_size == 1:
        return Round(comm, (header.encode(),), mine)
    take(comm, header.call())
    comm.state.count += 1
    if comm.world_size > LARGE_WORLD and _all_alike(comm, header, *mine):
        sizes = inline.numel(), mine[1].numel()
        frame = _Frame(header.encode(), 0, *sizes, (0, 0), reads_of(comm), *mine)
        frames = [frame] * comm.world_size
    else:
        frames = _gather_frames(comm, header, *mine)
    if len({frame.step for frame in frames}) > 1:
        raise refuse_histories(comm)
    if any(any(frame.reads) for frame in frames):
        check_reads(comm, [frame.reads for frame in frames])
    blobs = tuple(_inflated(frame.header, rank) for rank, frame in enumerate(frames))
    return Round(comm, blobs, mine, frames)


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
    return [run for run, _ in met.move()]


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


def _all_alike(comm: Communicator, header: Header, inline: Tensor, bulk: Tensor) -> bool:
    """True if all ranks have the same header and sizes, by a max-reduce of a few numbers."""
    text = header.encode() + _head(comm, 0, inline, bulk)
    digest = hashlib.blake2b(text, digest_size=HASH_BYTES).digest()
    numbers = torch.tensor(struct.unpack(f"<{HASH_BYTES // 8}q", digest), device="cpu")
    numbers >>= 1  # so that -h is in range as well
    both = torch.cat([numbers, -numbers]).to(comm.device)
    largest, smallest = comm.all_reduce(both, "max").chunk(2)
    return torch.equal(largest, -smallest)


def _head(comm: Communicator, header_bytes: int, inline: Tensor, bulk: Tensor) -> bytes:
    sizes = header_bytes, inline.numel(), bulk.numel()
    reads = reads_of(comm) if comm.state.reads else _NO_READS
    return _HEAD.pack(_MARK, *sizes, comm.state.count, comm.state.past, *reads)


def _gather_frames(
    comm: Communicator, header: Header, inline: Tensor, bulk: Tensor
) -> list[_Frame]:
    """Send and receive frames; a header too long for its area gets a round for the rest."""
    world_size = comm.world_size
    room = header_area(world_size) - _HEAD.size
    blob = header.encode()
    if len(blob) > room:
        blob = _deflated(blob)
    head = _head(comm, len(blob), inline, bulk) + blob[:room]
    frame = from_bytes(head.ljust(frame_size(world_size), b"\0")).to(comm.device)
    places = _data_in(frame, inline.numel(), bulk.numel(), world_size)
    for place, data in zip(places, (inline, bulk), strict=True):
        place.copy_(data[: place.numel()])
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
    """Read one rank's frame.

    Raises:
        MismatchError: it is not a frame.
    """
    area = to_bytes(row[: header_area(world_size)])
    mark, header_bytes, inline_bytes, bulk_bytes, count, past, *reads = _HEAD.unpack_from(area)
    if mark != _MARK:
        raise not_ours("its mark is another", rank)
    if header_bytes > LARGEST_HEADER or inline_bytes + bulk_bytes > LARGEST_DATA:
        raise not_ours("it announces more bytes than any rank sends", rank)
    header = area[_HEAD.size : _HEAD.size + header_bytes]
    data = _data_in(row, inline_bytes, bulk_bytes, world_size)
    step = count, past
    return _Frame(header, header_bytes, inline_bytes, bulk_bytes, step, tuple(reads), *data)


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
