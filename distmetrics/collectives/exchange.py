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
from collections import Counter
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.buckets import from_bytes, to_bytes
from distmetrics.collectives.header import Header, agree
from distmetrics.comm.call_lock import take
from distmetrics.comm.communicator import Communicator, gather_padded
from distmetrics.comm.verdict import left_a_call
from distmetrics.errors import DistmetricsError, InputError, MismatchError, who
from distmetrics.guard.settings import current_settings
from distmetrics.message import (
    LARGEST_DATA,
    LARGEST_HEADER,
    Message,
    decode,
    encode,
    not_ours,
    parse,
    reading,
)

_PASSES_KEPT = 4  # passes over streams that travel with a call
_PASSES = 1 << 20  # more than anybody makes over one loader
_BATCHES = 1 << 31
_LINES_KEPT = 64  # calls from unequal lines, since ranks were last at one line
# Mark and protocol; bytes of the header and of the data; the number of this call, and a hash of
# what else the rank has done; what it has read of streams.
_HEAD = struct.Struct(f"<5Q{2 * _PASSES_KEPT}Q")
_COMPRESSED = b"\0"  # starts a header that is; no other starts so
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


class Round(NamedTuple):
    """The first round of a call; in a world of one there are no frames."""

    comm: Communicator
    blobs: tuple[bytes, ...]
    mine: Tensor
    frames: Sequence[_Frame] = ()

    def headers(self) -> list[Header]:
        """Return every rank's header; raise MismatchError if a peer has sent something else."""
        return [header_of(blob, self.blobs.index(blob)) for blob in self.blobs]

    def agree(self) -> None:
        """Check that all ranks make the same call; see :func:`~header.agree`."""
        header = header_of(self.blobs[0], 0)
        if header.problem is not None or any(blob != self.blobs[0] for blob in self.blobs):
            agree(self.headers(), self.comm.rank)

    def move(self, *, sparing: bool = False) -> list[Tensor]:
        """Return every rank's data, once all ranks mean the same call.

        What did not fit into a frame takes a second round; ``sparing`` of bytes, one a rank where
        padding to the longest would be a waste.
        """
        comm = self.comm
        if not self.frames:
            return [self.mine]
        if len({*self.blobs}) > 1 or comm.state.uneven_lines:
            _check_lines(comm, self.headers())
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
    """Exchange headers, and data (uint8, on ``comm.device``) if it fits; the caller then agrees."""
    if comm.world_size == 1:
        return Round(comm, (header.encode(),), data)
    take(comm, header.call())
    comm.state.count += 1
    if comm.world_size > LARGE_WORLD and _all_alike(comm, header, data):
        frame = _Frame(header.encode(), 0, data.numel(), (0, 0), _reads_of(comm), data)
        frames = [frame] * comm.world_size
    else:
        frames = _gather_frames(comm, header, data)
    if len({frame.step for frame in frames}) > 1:
        raise refuse_histories(comm)
    if any(frames[0].reads):
        _check_reads(comm, [frame.reads for frame in frames])
    return Round(comm, tuple(frame.header for frame in frames), data, frames)


def exchange_alike(comm: Communicator, header: Header, data: Tensor) -> list[Tensor]:
    """Exchange the data of a call that must be the same on all ranks; return every rank's."""
    met = exchange(comm, header, data)
    met.agree()
    return met.move()


def check_memory(comm: Communicator, longest: int) -> None:
    """Refuse more data than this process has memory for; it is a peer who says how much comes."""
    try:
        torch.empty(longest * comm.world_size, dtype=torch.uint8, device=comm.device)
    except RuntimeError as error:
        raise InputError(
            f"up to {longest} bytes of each of {comm.world_size} ranks follow, for which this rank "
            "has no memory",
            rank=comm.rank,
        ) from error


def _all_alike(comm: Communicator, header: Header, data: Tensor) -> bool:
    """True if all ranks have the same header and sizes, by a max-reduce of a few numbers."""
    text = header.encode() + _head(comm, 0, data)
    digest = hashlib.blake2b(text, digest_size=HASH_BYTES).digest()
    numbers = from_bytes(digest).view(torch.int64) >> 1  # so that -h is in range as well
    both = torch.cat([numbers, -numbers]).to(comm.device)
    largest, smallest = comm.all_reduce(both, "max").chunk(2)
    return torch.equal(largest, -smallest)


def _head(comm: Communicator, header_bytes: int, data: Tensor) -> bytes:
    state = comm.state
    history = state.count, state.past, *_reads_of(comm)
    return _HEAD.pack(_MARK, header_bytes, data.numel(), *history)


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
    """Return the header that a rank has sent; raise MismatchError for anything else."""
    with reading("what it tells of its call", rank):
        return parse(Header, _inflated(blob) if blob.startswith(_COMPRESSED) else blob)


@functools.lru_cache(maxsize=64)
def _deflated(blob: bytes) -> bytes:
    return _COMPRESSED + zlib.compress(blob, level=1)


def _inflated(blob: bytes) -> bytes:
    """Return the bytes of a header, of which no more are made than one may have."""
    inflater = zlib.decompressobj()
    plain = inflater.decompress(blob[1:], LARGEST_HEADER)
    if not inflater.eof:
        raise ValueError(f"a header that ends nowhere, or of over {LARGEST_HEADER} bytes")
    return plain


# What ranks did before this call. Calls that agree one by one can still be the wrong ones: two
# lines that make the same call, reached in another order on two ranks, pair up silently. And what
# is called on a communicator directly is not agreed upon at all: each rank counts it into a hash,
# so that a slip comes to light in the next call. So does a checksum of all that a rank has read of
# a stream, since a rank may leave a loop early, and ranks can't wait for each other at its end.


class _History(Message, frozen=True):
    """What a rank did before this call."""

    count: int
    direct_calls: tuple[str, ...]
    left: tuple[str, ...]


def refuse_histories(comm: Communicator) -> DistmetricsError:
    """Build the error for ranks that have made or left other calls; every rank must call this."""
    state, ranks = comm.state, comm.members
    mine = _History(state.count, tuple(state.direct_calls), tuple(state.left))
    frames = _gather_frames(comm, Header("earlier calls", body=encode(mine)), from_bytes(b""))
    per_rank = []
    for rank, frame in enumerate(frames):
        body = header_of(frame.header, rank).body
        per_rank.append(decode(_History, body, "its earlier calls", rank))
    lefts = {rank: history.left for rank, history in zip(ranks, per_rank, strict=True)}
    if len({*lefts.values()}) > 1:
        peers = tuple(rank for rank, left in lefts.items() if left)
        state.verdict = left_a_call(
            peers,
            f"{who(peers)} left a call by an exception and went on, so the ranks are out of step",
            {rank: left[-1] if left else "left none" for rank, left in lefts.items()},
        )
        return state.verdict.error(ranks[comm.rank])
    calls = [(f"{each.count} calls of distmetrics", *each.direct_calls) for each in per_rank]
    columns = [*zip_longest(*calls, fillvalue="no further call")]
    return MismatchError(
        "ranks disagree on calls that were made on the communicator directly, before this one",
        per_rank=dict(enumerate(next((x for x in columns if len({*x}) > 1), columns[0]))),
        notes=["What those calls returned may be wrong on every rank."],
        likely="a collective under a condition, or in a loop, that not all ranks share.",
        do="make every rank call the same collectives; distmetrics.all_reduce and its kin "
        "compare before data moves.",
        rank=comm.rank,
        peers=range(comm.world_size),
    )


def _check_lines(comm: Communicator, headers: Sequence[Header]) -> None:
    """Refuse equal calls that ranks make from two lines in another order.

    In strict mode, any equal calls from different lines. Two lines alone are no error otherwise: a
    condition may have the same call on both its ways.
    """
    since = comm.state.uneven_lines
    sites = [header.site for header in headers]
    if len({*sites}) == 1:  # what was before is in order
        since.clear()
        return
    mode = current_settings().mode
    # The user's own name says that it is one call.
    if mode == "off" or (mode != "strict" and headers[0].name):
        return
    since.append(sites)
    del since[:-_LINES_KEPT]
    first, *others = zip(*since, strict=True)
    if any(lines != first and Counter(lines) == Counter(first) for lines in others):
        headline = "ranks made the same calls in another order"
    elif mode == "strict":
        headline = "ranks make the same call from different lines, which the strict guard refuses"
    else:
        return
    op = headers[0].call().op
    told = [f"{op}  {', then '.join(map(str, lines[-4:]))}" for lines in (first, *others)]
    raise MismatchError(
        headline,
        per_rank=dict(enumerate(told)),
        notes=["What earlier ones of these calls returned may be wrong on every rank."],
        likely="a set, or a dict, that ranks walk in another order.",
        do="make every rank call the same collectives, in the same order; a name= for each lets "
        "ranks tell them apart.",
        rank=comm.rank,
        peers=range(comm.world_size),
        site=sites[comm.rank],
    )


def note_read(comm: Communicator, stream: int, number: int, batches: int, crc: int) -> None:
    """Note what this rank has read, to be compared at the next call on a communicator.

    Streams have numbers from 1, the same on all ranks; ``number``: of the pass, from 1; 0 for the
    first batches; ``batches``: how many were read, or samples of an order.
    """
    reads = comm.state.reads
    reads[stream * _PASSES + number % _PASSES] = (batches % _BATCHES << 32) + crc
    while len(reads) > _PASSES_KEPT:
        del reads[next(iter(reads))]


def _reads_of(comm: Communicator) -> tuple[int, ...]:
    """Return what is noted and was not compared yet, as numbers of a frame."""
    pairs = chain.from_iterable(comm.state.reads.items())
    return (*pairs, *[0] * 2 * (_PASSES_KEPT - len(comm.state.reads)))


def _check_reads(comm: Communicator, reads: Sequence[Sequence[int]]) -> None:
    """Compare the passes that all ranks have noted; raise InputError where they differ."""
    per_rank = [dict(zip(numbers[::2], numbers[1::2], strict=True)) for numbers in reads]
    for key in sorted(set.intersection(*map(set, per_rank)) - {0}):
        comm.state.reads.pop(key, None)
        digests = [divmod(noted[key], 1 << 32) for noted in per_rank]
        if len({*digests}) == 1:
            continue
        lines = [f"{count} items with checksum {crc:08x}" for count, crc in digests]
        raise InputError(
            "exact: the ranks' data are not alike, and each rank must read all of the data, in one "
            "order",
            per_rank=dict(enumerate(lines)),
            notes=["So some samples do not count, or count twice. No data was moved."],
            likely="each rank's stream or sampler gives its own share already (split by rank or "
            "node); or ranks shuffle by seeds of their own; or a rank's stream ends early.",
            do="where each rank's stream is its own share, say exact(loader, dealt=True): prepare, "
            "setup_dataloaders and attach take dealt=True too, a Trainer and a Runner that loader. "
            "A loader whose sampler gives each rank its own share needs no exact(…). "
            "Else seed the order alike on all ranks. dealt=False compares nothing: for samples "
            "that come in one order, and are drawn anew when they are read (augmentation).",
            rank=comm.rank,
        )
