"""The one round that every collective of ours starts with: manifests, and small data riding along.

A transport may abort when ranks send different numbers of bytes, so what the round sends has one
size, whatever the call: a frame. It holds the manifest and, where it fits, the data. So a call of
small tensors costs one collective, and ranks that mean different calls still meet in equal frames
and learn of it. What does not fit follows in a second round, after the manifests have been
compared.

In a large world even frames are too much to send to everyone. There the first round is one
max-reduce of a hash h and of -h: the two maxima are each other's negatives only where all ranks
sent the same, and then nobody needs to read what the others mean. Frames follow only where the
hashes differ.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.manifest import Manifest
from distmetrics.collectives.pack import ALIGN
from distmetrics.collectives.past import check_lines, past_of, refuse_past
from distmetrics.comm.base import Communicator, in_call
from distmetrics.errors import MismatchError

Judge = Callable[[Sequence[bytes]], None]
_HEAD = struct.Struct(
    "<QQQQQ"
)  # mark and protocol; bytes of manifest, inline and bulk data; hash of direct calls
_MARK = 0x646D6574_00000003  # "dmet", protocol 3
_SMALL_WORLD = 8  # ranks up to which a frame has room for twice as much
_LARGEST, _SMALLEST, _TOTAL = 1 << 14, 1 << 12, 1 << 22
LARGE_WORLD = 256  # ranks above which hashes are compared first; up to here all frames together are at most 4 MiB
HASH_BYTES = 32


class _Frame(NamedTuple):
    """One rank's frame, read: its manifest's bytes so far, its sizes, what data rides along."""

    manifest: bytes
    manifest_bytes: int
    inline_bytes: int
    bulk_bytes: int
    past: int
    inline: Tensor
    bulk: Tensor


def frame_size(world_size: int) -> int:
    """Return the bytes of a frame: 32 KiB up to 8 ranks, else 16 KiB, less where all frames would
    exceed 4 MiB.

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


def manifest_area(world_size: int) -> int:
    """Return how many bytes of a frame are the manifest's; the data starts behind them."""
    return min(_LARGEST, frame_size(world_size)) // 4


def inline_capacity(world_size: int) -> int:
    """Return how many bytes of data ride along in a frame: what the manifest leaves.

    None in a large world, where data that can be reduced is, and so does not grow with the world.
    """
    return 0 if world_size > LARGE_WORLD else frame_size(world_size) - manifest_area(world_size)


def follows(inline_bytes: int, bulk_bytes: int, capacity: int) -> int:
    """Return how many bytes of one rank's data follow in the second round: what does not fit into
    its frame.

    >>> [follows(10, 40, capacity) for capacity in (64, 55, 9)]
    [0, 40, 50]
    """
    if inline_bytes > capacity:
        return inline_bytes + bulk_bytes
    return 0 if _after(inline_bytes) + bulk_bytes <= capacity else bulk_bytes


def _after(inline_bytes: int) -> int:
    """Return where bulk data begins that rides along: aligned for every dtype."""
    return -(-inline_bytes // ALIGN) * ALIGN


def parts_of(
    frame: Tensor, inline_bytes: int, bulk_bytes: int, world_size: int
) -> tuple[Tensor, Tensor]:
    """Return the runs of a frame where inline and bulk data lie; an empty one for what follows."""
    start, capacity = manifest_area(world_size), inline_capacity(world_size)
    left = follows(inline_bytes, bulk_bytes, capacity)
    inline = frame[start : start + (inline_bytes if inline_bytes <= capacity else 0)]
    start += _after(inline_bytes)
    return inline, frame[start : start + bulk_bytes] if not left else frame[:0]


def new_frame(
    comm: Communicator, manifest: Manifest, inline_bytes: int, bulk_bytes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a frame to be sent, its head in place, and the runs in it for inline and bulk data, if
    they fit.
    """
    empty = _head(manifest.encode(), inline_bytes, bulk_bytes, past_of(comm), comm.world_size).empty
    frame = empty.to(comm.device, copy=True)
    return frame, *parts_of(frame, inline_bytes, bulk_bytes, comm.world_size)


def head_of(
    comm: Communicator, manifest: Manifest, inline_bytes: int, bulk_bytes: int
) -> bytes | None:
    """Return the beginning of a frame, up to where the data is; None where it does not hold the
    whole manifest.
    """
    blob, head, _ = _head(
        manifest.encode(), inline_bytes, bulk_bytes, past_of(comm), comm.world_size
    )
    return head if _HEAD.size + len(blob) <= manifest_area(comm.world_size) else None


def exchange(
    comm: Communicator,
    manifest: Manifest,
    inline: Tensor,
    bulk: Tensor,
    judge: Judge,
    *,
    frame: Tensor | None = None,
    meanwhile: Callable[[], None] | None = None,
    rows: list[Tensor] | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Exchange manifests, judge them, exchange data.

    Args:
        comm: who talks.
        manifest: what this rank is about to do.
        inline: uint8 on ``comm.device``; rides along where it fits.
        bulk: uint8 on ``comm.device``; rides along where it fits beside ``inline``.
        judge: gets the encoded manifests; raises, the same on every rank, if they don't go
            together.
        frame: of :func:`new_frame`, where what rides along lies in one already.
        meanwhile: called once while the first round is under way; not in a large world, nor in a
            world of one.
        rows: every rank's frame, where the first round has been made already.

    Returns: every rank's ``(inline, bulk)``, in rank order, on ``comm.device``.
    """
    if comm.world_size == 1:
        judge([manifest.encode()])
        return [(inline, bulk)]
    capacity = inline_capacity(comm.world_size)
    with in_call(manifest.call()):
        if comm.world_size > LARGE_WORLD and _all_alike(comm, manifest, inline, bulk):
            judge([manifest.encode()] * comm.world_size)
            return _gather_alike(comm, inline, bulk)
        frames = _gather_frames(comm, manifest, inline, bulk, frame, meanwhile, rows)
        blobs = [_inflate(frame.manifest) for frame in frames]
        judge(blobs)
        if any(frame.past != frames[0].past for frame in frames):
            raise refuse_past(comm, partial(gather_padded, comm))
        check_lines(comm, blobs)
        sizes = [follows(read.inline_bytes, read.bulk_bytes, capacity) for read in frames]
        if not any(sizes):
            return [(read.inline, read.bulk) for read in frames]
        rest = bulk if inline.numel() <= capacity else torch.cat([inline, bulk])
        rests = gather_padded(comm, rest[: sizes[comm.rank]], max(sizes))
    result = []
    for read, size, row in zip(frames, sizes, rests, strict=True):
        split = size - read.bulk_bytes  # of what follows: inline data, then bulk data
        result.append(
            (
                row[:split] if split > 0 else read.inline,
                row[max(split, 0) : size] if size else read.bulk,
            )
        )
    return result


def _all_alike(comm: Communicator, manifest: Manifest, inline: Tensor, bulk: Tensor) -> bool:
    """Whether all ranks have the same manifest and the same sizes, by a max-reduce of a few
    numbers.
    """
    text = manifest.encode() + _HEAD.pack(_MARK, 0, inline.numel(), bulk.numel(), past_of(comm))
    digest = hashlib.blake2b(text, digest_size=HASH_BYTES).digest()
    mine = (
        torch.tensor(struct.unpack(f"<{HASH_BYTES // 8}q", digest)) >> 1
    )  # so that -h is in range as well
    largest, smallest = comm.all_reduce(torch.cat([mine, -mine]).to(comm.device), "max").chunk(2)
    return torch.equal(largest, -smallest)


def _gather_alike(comm: Communicator, inline: Tensor, bulk: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Gather data of which all ranks have equally much."""
    if inline.numel() + bulk.numel() == 0:
        return [(inline, bulk)] * comm.world_size
    rest = torch.cat([inline, bulk])
    rows = gather_padded(comm, rest, rest.numel())
    return [(row[: inline.numel()], row[inline.numel() : rest.numel()]) for row in rows]


def _gather_frames(
    comm: Communicator,
    manifest: Manifest,
    inline: Tensor,
    bulk: Tensor,
    frame: Tensor | None,
    meanwhile: Callable[[], None] | None,
    rows: list[Tensor] | None,
) -> list[_Frame]:
    """Send and receive frames; a manifest too long for its area gets a round for the rest."""
    area = manifest_area(comm.world_size)
    past = past_of(comm)
    blob, head, _ = _head(manifest.encode(), inline.numel(), bulk.numel(), past, comm.world_size)
    if frame is None:
        frame, *room = new_frame(comm, manifest, inline.numel(), bulk.numel())
        for run, data in zip(room, (inline, bulk), strict=True):
            run.copy_(data[: run.numel()])
    mine = _Frame(
        blob[: area - _HEAD.size], len(blob), inline.numel(), bulk.numel(), past, inline, bulk
    )
    if meanwhile is not None:
        meanwhile()
    rows = comm.all_gather(frame) if rows is None else rows
    frames = [
        mine if r == comm.rank else _read_frame(row, comm.world_size, mine, head)
        for r, row in enumerate(rows)
    ]
    longest = max([read.manifest_bytes - len(read.manifest) for read in frames])
    if longest == 0:
        return frames
    left = torch.frombuffer(bytearray(blob[area - _HEAD.size :]) or bytearray(1), dtype=torch.uint8)
    tails = gather_padded(comm, left.to(comm.device), longest)
    return [
        read._replace(
            manifest=read.manifest + to_bytes(tail[: read.manifest_bytes - len(read.manifest)])
        )
        for read, tail in zip(frames, tails, strict=True)
    ]


class _Head(NamedTuple):
    """The manifest as it travels, the beginning of the frame, and a frame with nothing else in it."""

    blob: bytes
    beginning: bytes
    empty: Tensor


@functools.lru_cache(maxsize=64)
def _head(blob: bytes, inline_bytes: int, bulk_bytes: int, past: int, world_size: int) -> _Head:
    """Return what is the same from one sync to the next."""
    size, area = frame_size(world_size), manifest_area(world_size)
    if len(blob) > area - _HEAD.size:
        blob = zlib.compress(blob, level=1)
    beginning = (
        _HEAD.pack(_MARK, len(blob), inline_bytes, bulk_bytes, past) + blob[: area - _HEAD.size]
    )
    return _Head(
        blob,
        beginning,
        torch.frombuffer(bytearray(beginning.ljust(size, b"\0")), dtype=torch.uint8),
    )


def _read_frame(row: Tensor, world_size: int, mine: _Frame, head: bytes) -> _Frame:
    """Read one rank's frame; most often its head is that of ``mine``."""
    area = manifest_area(world_size)
    start = _beginning(row, len(head))
    if start == head:
        return _Frame(*mine[:5], *parts_of(row, mine.inline_bytes, mine.bulk_bytes, world_size))
    mark, manifest_bytes, inline_bytes, bulk_bytes, past = _HEAD.unpack_from(start)
    if mark != _MARK:
        raise MismatchError(
            "a rank answered with data that is no frame of distmetrics",
            likely="another collective of the same group got in between, or two versions of "
            "distmetrics.",
            do="make every rank call the same collectives in the same order, with one version "
            "installed.",
        )
    manifest = to_bytes(row[_HEAD.size : min(area, _HEAD.size + manifest_bytes)])
    data = parts_of(row, inline_bytes, bulk_bytes, world_size)
    return _Frame(manifest, manifest_bytes, inline_bytes, bulk_bytes, past, *data)


def gather_padded(comm: Communicator, data: Tensor, longest: int) -> list[Tensor]:
    """Gather runs of different length, each padded to the longest."""
    padded = torch.zeros(-(-longest // 16) * 16, dtype=torch.uint8, device=comm.device)
    used = min(data.numel(), longest)
    padded[:used] = data[:used]
    return comm.all_gather(padded)


@functools.lru_cache(maxsize=64)
def _inflate(blob: bytes) -> bytes:
    return blob if blob[:1] == b"[" else zlib.decompress(blob)


def _beginning(row: Tensor, count: int) -> bytes:
    """Copy the first bytes of a frame out of torch; without an operation of torch where they are at
    hand.
    """
    if row.is_cpu and row.is_contiguous():
        return ctypes.string_at(row.data_ptr(), count)
    return to_bytes(row[:count])


def to_bytes(run: Tensor) -> bytes:
    """Copy a run of uint8 out of torch."""
    run = run.cpu().contiguous()  # kept in a name: the address below is only good while it lives
    return ctypes.string_at(run.data_ptr(), run.numel())
