"""What each rank has read of a whole stream, or of a whole order, compared at their next call.

A rank may leave a loop early, so ranks can't wait for each other at a stream's end. The checksum of
all that a rank has read travels with its next call, whatever that is.
"""

from __future__ import annotations

from collections.abc import Sequence

from distmetrics.comm.communicator import Communicator
from distmetrics.errors import DistmetricsError, InputError

KEPT = 4  # passes over streams that travel with a call
_PASSES = 1 << 20  # more than anybody makes over one loader
_BATCHES = 1 << 31


def note_read(comm: Communicator, stream: int, number: int, batches: int, crc: int) -> None:
    """Note what this rank has read, to be compared at the next call on a communicator.

    Args:
        comm: of the ranks that read the stream.
        stream: its number, from 1, the same on all ranks.
        number: of the pass, from 1; 0 for the first batches.
        batches: how many were read; of an order, how many samples it has.
        crc: their checksum.
    """
    reads = comm.state.reads
    reads[stream * _PASSES + number % _PASSES] = (batches % _BATCHES << 32) + crc
    while len(reads) > KEPT:
        del reads[next(iter(reads))]


def reads_of(comm: Communicator) -> tuple[int, ...]:
    """Return what is noted and was not compared yet, as numbers of a frame."""
    pairs = [number for pair in comm.state.reads.items() for number in pair]
    return (*pairs, *[0] * (2 * KEPT - len(pairs)))


def check_reads(comm: Communicator, reads: Sequence[Sequence[int]]) -> None:
    """Compare the passes that all ranks have noted.

    Raises:
        InputError: the ranks have read different batches (on every rank).
    """
    if not any(reads[0]):
        return
    per_rank = [dict(zip(numbers[::2], numbers[1::2], strict=True)) for numbers in reads]
    for key in sorted(set.intersection(*map(set, per_rank)) - {0}):
        comm.state.reads.pop(key, None)
        digests = [noted[key] for noted in per_rank]
        if len(set(digests)) > 1:
            raise _not_alike(digests, comm.rank, is_first=key % _PASSES == 0)


def _not_alike(digests: Sequence[int], rank: int, *, is_first: bool) -> DistmetricsError:
    lines = {}
    for each, digest in enumerate(digests):
        count, crc = divmod(digest, 1 << 32)
        lines[each] = f"{'first' * is_first} {count} items with checksum {crc:08x}".strip()
    return InputError(
        "exact: the ranks' data are not alike, and each rank must read all of the data, in one "
        "order",
        per_rank=lines,
        notes=["No batch was handed out."]
        if is_first
        else ["In that pass some samples did not count, or counted twice. No data was moved."],
        likely="each rank's stream or sampler gives its own share already (split by rank or node); "
        "or ranks shuffle by seeds of their own; or a rank's stream ends early.",
        do="where each rank's stream is its own share, say exact(loader, dealt=True): prepare, "
        "setup_dataloaders and attach take dealt=True too, a Trainer and a Runner that loader. "
        "A loader whose sampler gives each rank its own share needs no exact(…). "
        "Else seed the order alike on all ranks. dealt=False compares nothing: for samples "
        "that come in one order, and are drawn anew when they are read (augmentation).",
        rank=rank,
    )
