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

import functools
import hashlib
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from distmetrics.collectives.call_history import check_lines, refuse_histories, step_of
from distmetrics.collectives.manifest import Manifest, check
from distmetrics.collectives.pack import align, from_bytes, to_bytes
from distmetrics.collectives.reading import LARGEST_DATA, LARGEST_MANIFEST, not_ours, reading
from distmetrics.collectives.streams import KEPT, check_reads, reads_of
from distmetrics.comm.base import Communicator, gather_padded, reported
from distmetrics.comm.one_call import in_one_call
from distmetrics.errors import InputError, Ranks

R = TypeVar("R")
# Mark and protocol; bytes of the manifest, of inline and of bulk data; the number of this call, and
# a hash of what else the rank has done; what it has read of streams.
_HEAD = struct.Struct(f"<6Q{2 * KEPT}Q")
_LENGTH = struct.Struct(">Q")  # of a manifest, before its compressed bytes; starts with a zero
_MARK = 0x646D6574_00000006  # "dmet", protocol 6
_SMALL_WORLD = 8  # ranks up to which a frame has room for twice as much
_LARGEST, _SMALLEST, _TOTAL = 1 << 14, 1 << 12, 1 << 22
# Ranks above which hashes are compared first; up to here all frames together are at most 4 MiB.
LARGE_WORLD = 256
HASH_BYTES = 32


class _Frame(NamedTuple):
    """One rank's frame, read: its manifest's bytes so far, sizes, past, data that rides along."""

    manifest: bytes
    manifest_bytes: int
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


def manifest_area(world_size: int) -> int:
    """Return how many bytes of a frame are the manifest's; the data starts behind them."""
    return min(_LARGEST, frame_size(world_size)) // 4


def inline_capacity(world_size: int) -> int:
    """Return how many bytes of data ride along in a frame: what the manifest leaves.

    None in a large world, where data that can be reduced is, and so does not grow with the world.
    """
    return 0 if world_size > LARGE_WORLD else frame_size(world_size) - manifest_area(world_size)


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
    start, capacity = manifest_area(world_size), inline_capacity(world_size)
    inline = frame[start : start + (inline_bytes if inline_bytes <= capacity else 0)]
    if follows(inline_bytes, bulk_bytes, capacity):
        return [inline, frame[:0]]
    start += align(inline_bytes)
    return [inline, frame[start : start + bulk_bytes]]


def exchange(
    comm: Communicator,
    manifest: Manifest,
    inline: Tensor,
    bulk: Tensor,
    check: Callable[[Sequence[bytes]], R],
) -> tuple[R, list[tuple[Tensor, Tensor]]]:
    """Exchange manifests, check them, exchange data.

    Args:
        comm: who talks.
        manifest: what this rank is about to do.
        inline: uint8 on ``comm.device``; rides along where it fits.
        bulk: uint8 on ``comm.device``; rides along where it fits beside ``inline``.
        check: gets the encoded manifests; raises, the same on every rank, if they don't go
            together.

    Returns: what ``check`` returned; every rank's ``(inline, bulk)``, in rank order, on
        ``comm.device``.
    """
    if comm.world_size == 1:
        return check([manifest.encode()]), [(inline, bulk)]
    rounds = functools.partial(_exchange, comm, manifest, inline, bulk, check)
    with reported(comm):
        return in_one_call(comm, manifest.call, rounds)


def _exchange(
    comm: Communicator,
    manifest: Manifest,
    inline: Tensor,
    bulk: Tensor,
    check: Callable[[Sequence[bytes]], R],
) -> tuple[R, list[tuple[Tensor, Tensor]]]:
    if comm.world_size > LARGE_WORLD and _all_alike(comm, manifest, inline, bulk):
        sizes = inline.numel(), bulk.numel()
        past = (0, 0), reads_of(comm)
        frames = [_Frame(manifest.encode(), 0, *sizes, *past, inline, bulk)] * comm.world_size
    else:
        frames = _gather_frames(comm, manifest, inline, bulk)
    if len({frame.step for frame in frames}) > 1:
        raise refuse_histories(comm)
    check_reads(comm, [frame.reads for frame in frames])
    blobs = []
    for rank, frame in enumerate(frames):
        with reading("what it tells of its call", rank):
            blobs.append(_inflated(frame.manifest))
    checked = check(blobs)
    check_lines(comm, blobs)
    return checked, _gather_what_follows(comm, inline, bulk, frames)


def exchange_alike(
    comm: Communicator, manifest: Manifest, data: Tensor, do: str = ""
) -> list[Tensor]:
    """Exchange the data of a call that must be the same on all ranks; return every rank's.

    Args:
        comm: who talks.
        manifest: what this rank is about to do.
        data: uint8 on ``comm.device``.
        do: advice for shapes that differ, where the operation has some.
    """
    agreed = functools.partial(check, rank=comm.rank, do=do)
    _, runs = exchange(comm, manifest, data, data[:0], agreed)
    return [run for run, _ in runs]


def _gather_what_follows(
    comm: Communicator, inline: Tensor, bulk: Tensor, frames: Sequence[_Frame]
) -> list[tuple[Tensor, Tensor]]:
    """Return every rank's data, from its frame and from a second round where that is needed."""
    capacity = inline_capacity(comm.world_size)
    sizes = [follows(frame.inline_bytes, frame.bulk_bytes, capacity) for frame in frames]
    if not any(sizes):
        return [(frame.inline, frame.bulk) for frame in frames]
    rest = bulk if inline.numel() <= capacity else torch.cat([inline, bulk])
    check_memory(comm, max(sizes))
    rows = gather_padded(comm, rest[: sizes[comm.rank]], max(sizes))
    result = []
    for frame, size, row in zip(frames, sizes, rows, strict=True):
        split = max(0, size - frame.bulk_bytes)  # of what follows: inline data, then bulk data
        theirs = row[:split] if split else frame.inline
        result.append((theirs, row[split:size] if size else frame.bulk))
    return result


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


def _all_alike(comm: Communicator, manifest: Manifest, inline: Tensor, bulk: Tensor) -> bool:
    """True if all ranks have the same manifest and sizes, by a max-reduce of a few numbers."""
    head = _HEAD.pack(_MARK, 0, inline.numel(), bulk.numel(), *step_of(comm), *reads_of(comm))
    text = manifest.encode() + head
    digest = hashlib.blake2b(text, digest_size=HASH_BYTES).digest()
    numbers = torch.tensor(struct.unpack(f"<{HASH_BYTES // 8}q", digest), device="cpu")
    numbers >>= 1  # so that -h is in range as well
    both = torch.cat([numbers, -numbers]).to(comm.device)
    largest, smallest = comm.all_reduce(both, "max").chunk(2)
    return torch.equal(largest, -smallest)


def _gather_frames(
    comm: Communicator, manifest: Manifest, inline: Tensor, bulk: Tensor
) -> list[_Frame]:
    """Send and receive frames; a manifest too long for its area gets a round for the rest."""
    world_size = comm.world_size
    room = manifest_area(world_size) - _HEAD.size
    blob = manifest.encode()
    if len(blob) > room:
        blob = _deflated(blob)
    sizes = inline.numel(), bulk.numel()
    past = *step_of(comm), *reads_of(comm)
    head = _HEAD.pack(_MARK, len(blob), *sizes, *past) + blob[:room]
    frame = from_bytes(head.ljust(frame_size(world_size), b"\0")).to(comm.device)
    for place, data in zip(_data_in(frame, *sizes, world_size), (inline, bulk), strict=True):
        place.copy_(data[: place.numel()])
    rows = enumerate(comm.all_gather(frame))
    frames = [_read_frame(row, world_size, rank) for rank, row in rows]
    missing = [each.manifest_bytes - len(each.manifest) for each in frames]
    if any(missing):
        tails = gather_padded(comm, from_bytes(blob[room:]).to(comm.device), max(missing))
        for rank, count in enumerate(missing):
            whole = frames[rank].manifest + to_bytes(tails[rank][:count])
            frames[rank] = frames[rank]._replace(manifest=whole)
    return frames


def _read_frame(row: Tensor, world_size: int, rank: int) -> _Frame:
    """Read one rank's frame.

    Raises:
        MismatchError: it is none.
    """
    area = to_bytes(row[: manifest_area(world_size)])
    mark, manifest_bytes, inline_bytes, bulk_bytes, calls, past, *reads = _HEAD.unpack_from(area)
    if mark != _MARK:
        raise not_ours("its mark is another", rank)
    if manifest_bytes > LARGEST_MANIFEST or inline_bytes + bulk_bytes > LARGEST_DATA:
        raise not_ours("it announces more bytes than any rank sends", rank)
    manifest = area[_HEAD.size : _HEAD.size + manifest_bytes]
    data = _data_in(row, inline_bytes, bulk_bytes, world_size)
    about = (calls, past), tuple(reads)
    return _Frame(manifest, manifest_bytes, inline_bytes, bulk_bytes, *about, *data)


@functools.lru_cache(maxsize=64)
def _deflated(blob: bytes) -> bytes:
    return _LENGTH.pack(len(blob)) + zlib.compress(blob, level=1)


@functools.lru_cache(maxsize=64)
def _inflated(blob: bytes) -> bytes:
    """Return the bytes of a manifest, of which no more are made than were announced."""
    if blob[:1] == b"[":
        return blob
    (length,) = _LENGTH.unpack_from(blob)
    if not 0 < length <= LARGEST_MANIFEST:
        raise ValueError(f"a length of {length} bytes")
    inflater = zlib.decompressobj()
    plain = inflater.decompress(blob[_LENGTH.size :], length)
    if len(plain) < length or not inflater.eof:
        raise ValueError(f"another length than {length} bytes")
    return plain
