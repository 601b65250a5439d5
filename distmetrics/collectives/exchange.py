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

import hashlib
import logging
import struct
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.buckets import from_bytes, to_bytes
from distmetrics.collectives.header import Header, agree, header_of
from distmetrics.comm.communicator import Communicator, gather_padded, one_call, take
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
)

_log = logging.getLogger("distmetrics.guard")
_PASSES_KEPT = 4  # passes over streams that travel with a call
_LINES_KEPT = 64  # calls from unequal lines, since ranks were last at one line
# Mark and protocol; bytes of the header and of the data; number of this call, hash of what else
# the rank has done.
_HEAD = struct.Struct("<5Q")
_MARK = 0x646D6574_00000009  # "dmet", protocol 9
HEADER_AREA = 1 << 12  # bytes at the start of a frame, for the head and the header
_ROOM = HEADER_AREA - _HEAD.size  # of a header
_SMALL_WORLD = 8  # ranks up to which a frame has room for twice as much
# Ranks above which hashes are compared first; up to here all frames together are at most 4 MiB.
LARGE_WORLD = 256
HASH_BYTES = 32
_WASTE = 1.1  # padded bytes for one of data


class _Frame(NamedTuple):
    """One rank's frame, read."""

    header: bytes
    header_bytes: int  # more where the header did not fit
    data_bytes: int
    inline: Tensor  # the data, or nothing where it does not fit
    history: tuple[int, ...] = ()  # number of this call, and the hash


def inline_capacity(world_size: int) -> int:
    """Return how many bytes of data ride along in a frame: 28 KiB up to 8 ranks, else 12 KiB.

    Up to there the time of an all_gather is its latency, so the room costs nothing (measured on
    gloo, between other work: 32 KiB takes as long as 16 between 2 ranks, 64 KiB a fourth longer).
    None in a large world, where data that can be reduced is, and so does not grow with the world.
    """
    if world_size > LARGE_WORLD:
        return 0
    return (28 if world_size <= _SMALL_WORLD else 12) << 10


def frame_size(world_size: int) -> int:
    """Return the bytes of a frame.

    >>> [frame_size(world_size) >> 10 for world_size in (2, 8, 9, 256, 1024)]
    [32, 32, 16, 16, 4]
    """
    return HEADER_AREA + inline_capacity(world_size)


class Round(NamedTuple):
    """The first round of a call. Callers agree on its headers, and then let the data move."""

    comm: Communicator
    mine: Tensor
    frames: Sequence[_Frame]

    @property
    def blobs(self) -> tuple[bytes, ...]:
        """Every rank's header, encoded."""
        return tuple(frame.header for frame in self.frames)

    def headers(self) -> list[Header]:
        """Return every rank's header; raise MismatchError if a peer has sent something else."""
        blobs = self.blobs
        return [header_of(blob, blobs.index(blob)) for blob in blobs]

    def move(self, *, sparing: bool = False) -> list[Tensor]:
        """Return every rank's data, in a second round where it did not fit into a frame.

        ``sparing`` of bytes, in one a rank where padding to the longest would be a waste.
        """
        _check_lines(self)
        sizes = [frame.data_bytes - frame.inline.numel() for frame in self.frames]
        longest = max(sizes)
        if longest == 0:
            return [frame.inline for frame in self.frames]
        if sparing and len(sizes) * longest > _WASTE * sum(sizes):
            return [self._sent_by(rank) for rank in range(len(sizes))]
        check_memory(self.comm, longest)
        rows = gather_padded(self.comm, self.mine[: sizes[self.comm.rank]], longest)
        moved = zip(self.frames, sizes, rows, strict=True)
        return [row[:size] if size else frame.inline for frame, size, row in moved]

    def move_from(self, src: int) -> Tensor:
        """Return one rank's data; what did not fit into its frame takes a second round."""
        _check_lines(self)
        return self._sent_by(src)

    def _sent_by(self, src: int) -> Tensor:
        frame, comm = self.frames[src], self.comm
        if frame.inline.numel() == frame.data_bytes:
            return frame.inline
        check_memory(comm, frame.data_bytes)
        data = self.mine if comm.rank == src else self.mine.new_empty(frame.data_bytes)
        return comm.broadcast(data, src)


def exchange(comm: Communicator, header: Header, data: Tensor) -> Round:
    """Exchange headers, and data (uint8, on ``comm.device``) if it fits; the caller then agrees."""
    if comm.world_size == 1:
        return Round(comm, data, [_Frame(header.encode(), 0, data.numel(), data)])
    take(comm, header.call())
    state = comm.state
    state.count += 1
    if state.reads:
        header = header.but(reads=tuple(state.reads.items()))
    if comm.world_size > LARGE_WORLD and _all_alike(comm, header, data):
        frame = _Frame(header.encode(), 0, data.numel(), data[:0])
        met = Round(comm, data, [frame] * comm.world_size)
    else:
        met = _gather_frames(comm, header, data)
    if len({frame.history for frame in met.frames}) > 1:
        raise refuse_histories(comm)
    if state.reads:
        _check_reads(comm, met.headers())
    return met


def exchange_alike(comm: Communicator, header: Header, data: Tensor) -> list[Tensor]:
    """Exchange the data of a call that must be the same on all ranks; return every rank's."""
    met = exchange(comm, header, data)
    agree(met.headers(), comm.rank)
    return met.move()


@one_call
def agree_on(header: Header, *, comm: Communicator) -> None:
    """Compare what all ranks are about to do; where they differ, every rank raises."""
    exchange_alike(comm, header, from_bytes(b"").to(comm.device))


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
    return _HEAD.pack(_MARK, header_bytes, data.numel(), comm.state.count, comm.state.past)


def _gather_frames(comm: Communicator, header: Header, data: Tensor) -> Round:
    """Send and receive frames; a header too long for its area gets a round for the rest."""
    blob = header.encode()
    head = _head(comm, len(blob), data) + blob[:_ROOM]
    frame = from_bytes(head.ljust(frame_size(comm.world_size), b"\0")).to(comm.device)
    if data.numel() <= inline_capacity(comm.world_size):
        frame[HEADER_AREA : HEADER_AREA + data.numel()].copy_(data)
    frames = [_read_frame(row, rank) for rank, row in enumerate(comm.all_gather(frame))]
    missing = [each.header_bytes - len(each.header) for each in frames]
    if any(missing):
        tails = gather_padded(comm, from_bytes(blob[_ROOM:]).to(comm.device), max(missing))
        for rank, count in enumerate(missing):
            whole = frames[rank].header + to_bytes(tails[rank][:count])
            frames[rank] = frames[rank]._replace(header=whole)
    return Round(comm, data, frames)


def _read_frame(row: Tensor, rank: int) -> _Frame:
    """Read one rank's frame; raise MismatchError for what is no frame."""
    area = to_bytes(row[:HEADER_AREA])
    mark, header_bytes, data_bytes, *history = _HEAD.unpack_from(area)
    if mark != _MARK:
        raise not_ours("its mark is another", rank)
    if header_bytes > LARGEST_HEADER or data_bytes > LARGEST_DATA:
        raise not_ours("it announces more bytes than any rank sends", rank)
    header = area[_HEAD.size :][:header_bytes]
    end = HEADER_AREA + data_bytes
    inline = row[HEADER_AREA : end if end <= row.numel() else HEADER_AREA]
    return _Frame(header, header_bytes, data_bytes, inline, tuple(history))


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
    met = _gather_frames(comm, Header("earlier calls", body=encode(mine)), from_bytes(b""))
    bodies = [header.body for header in met.headers()]
    per_rank = [decode(_History, body, "its earlier calls", r) for r, body in enumerate(bodies)]
    lefts = dict(zip(ranks, [history.left for history in per_rank], strict=True))
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
    told = next((column for column in columns if len({*column}) > 1), columns[0])
    return MismatchError(
        "ranks disagree on calls that were made on the communicator directly, before this one",
        per_rank=dict(enumerate(told)),
        notes=["What those calls returned may be wrong on every rank."],
        likely="a collective under a condition, or in a loop, that not all ranks share.",
        do="make every rank call the same collectives; distmetrics.all_reduce and its kin "
        "compare before data moves.",
        rank=comm.rank,
        peers=range(comm.world_size),
    )


def _check_lines(met: Round) -> None:
    """Refuse equal calls from different lines: all in strict mode, else those in another order."""
    comm, headers = met.comm, met.headers()
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
    lines = [*zip(*since, strict=True)]
    is_crossed = any(own != lines[0] and Counter(own) == Counter(lines[0]) for own in lines)
    if not is_crossed and mode != "strict":
        return
    op = headers[0].call().op
    told = [f"{op}  {', then '.join(map(str, own[-4:]))}" for own in lines]
    error = MismatchError(
        f"ranks made the same calls {'in another order' if is_crossed else 'from different lines'}",
        per_rank=dict(enumerate(told)),
        notes=["What earlier ones of these calls returned may be wrong on every rank."],
        likely="a set, or a dict, that ranks walk in another order.",
        do="make every rank call the same collectives, in the same order; a name= for each lets "
        "ranks tell them apart.",
        rank=comm.rank,
        peers=range(comm.world_size),
        site=sites[comm.rank],
    )
    if mode != "warn":
        raise error
    _log.warning("%s", error)
    since.clear()


def note_read(comm: Communicator, stream: int, number: int, batches: int, crc: int) -> None:
    """Note what this rank has read of a pass over a stream; the next call compares it."""
    reads = comm.state.reads
    reads[stream, number] = batches, crc
    while len(reads) > _PASSES_KEPT:
        del reads[next(iter(reads))]


def _check_reads(comm: Communicator, headers: Sequence[Header]) -> None:
    """Compare the passes that all ranks have noted; raise InputError where they differ."""
    per_rank = [dict(header.reads) for header in headers]
    for key in sorted(set.intersection(*map(set, per_rank))):
        comm.state.reads.pop(key, None)
        digests = [reads[key] for reads in per_rank]
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
