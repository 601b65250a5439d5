"""What ranks did before this call: their calls, direct calls, and what they have read of streams.

Calls that agree one by one can still be the wrong ones: two lines that make the same call, reached
in another order on two ranks, pair up silently. And what is called on a communicator directly is
not agreed upon at all. Each rank counts it into a hash that travels with its next call, so that a
slip comes to light there. So does a checksum of all that a rank has read of a stream, since a rank
may leave a loop early, and ranks can't wait for each other at a stream's end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

import torch

from distmetrics.collectives.buckets import from_bytes, to_bytes
from distmetrics.collectives.header import Header
from distmetrics.comm.communicator import Communicator, gather_padded
from distmetrics.comm.verdict import Verdict, left_a_call
from distmetrics.errors import DistmetricsError, InputError, MismatchError, who
from distmetrics.guard.settings import current_settings
from distmetrics.message import LARGEST_HEADER, Message, decode, encode, not_ours

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


# Calls from unequal lines, since ranks were last at one line, that are compared.
_KEPT = 64
_SAME_ORDER = (
    "make every rank call the same collectives, in the same order; a name= for each lets ranks "
    "tell them apart."
)


class History(Message, frozen=True):
    """The number of a rank's call, its last direct calls, and how it has left calls."""

    count: int
    direct_calls: tuple[str, ...]
    left: tuple[str, ...]


def refuse_histories(comm: Communicator) -> DistmetricsError:
    """Build the error for ranks that are at other calls, or have made others.

    Every rank must call this.
    """
    state = comm.state
    run = from_bytes(encode(History(state.count, tuple(state.direct_calls), tuple(state.left)))).to(
        comm.device
    )
    sizes = [int(x) for x in comm.all_gather(torch.tensor([run.numel()], device=comm.device))]
    if not 0 <= min(sizes) <= max(sizes) <= LARGEST_HEADER:
        raise not_ours(f"histories of {sizes} bytes")
    rows = gather_padded(comm, run, max(sizes))
    per_rank = []
    for rank, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        per_rank.append(decode(History, to_bytes(row[:size]), "its earlier calls", rank))
    ranks = comm.members
    lefts = {rank: history.left for rank, history in zip(ranks, per_rank, strict=True)}
    if len({*lefts.values()}) > 1:
        peers = tuple(rank for rank, left in lefts.items() if left)
        state.verdict = left_a_call(
            peers,
            f"{who(peers)} left a call by an exception and went on, so the ranks are out of step",
            {rank: left[-1] if left else "left none" for rank, left in lefts.items()},
        )
    elif len({history.count for history in per_rank}) > 1:
        state.verdict = Verdict(
            "diverged",
            "ranks are at different calls: some have made more than others, and no number of "
            "theirs can be trusted",
            per_rank={r: f"this is call {h.count}" for r, h in zip(ranks, per_rank, strict=True)},
            likely="a communicator of one's own that does not pass every call on.",
            do="make every rank call the same collectives, in the same order.",
        )
    else:
        return _other_direct_calls(comm, [history.direct_calls for history in per_rank])
    return state.verdict.error(ranks[comm.rank])


def _other_direct_calls(comm: Communicator, per_rank: Sequence[Sequence[str]]) -> DistmetricsError:
    columns = [*zip_longest(*per_rank, fillvalue="no further call")]
    columns = columns or [("no direct call",) * comm.world_size]
    differing = next((column for column in columns if len({*column}) > 1), columns[0])
    return MismatchError(
        "ranks disagree on calls that were made on the communicator directly, before this one",
        per_rank=dict(enumerate(differing)),
        notes=["What those calls returned may be wrong on every rank."],
        likely="a collective under a condition, or in a loop, that not all ranks share.",
        do="make every rank call the same collectives; distmetrics.all_reduce and its kin "
        "compare before data moves.",
        rank=comm.rank,
        peers=range(comm.world_size),
    )


def check_lines(comm: Communicator, headers: Sequence[Header]) -> None:
    """Refuse equal calls that ranks make from two lines in another order.

    In strict mode, any equal calls from different lines. Two lines alone are no error otherwise: a
    condition may have the same call on both its ways.

    Args:
        comm: who talks.
        headers: every rank's; they mean the same call.

    Raises:
        MismatchError: the same on every rank.
    """
    since = comm.state.uneven_lines
    if all(header is headers[0] for header in headers):  # at one line: what was before is in order
        since.clear()
        return
    mode = current_settings().mode
    sites = [header.site for header in headers]
    if mode == "off" or len({*sites}) == 1:
        return
    if mode == "strict":
        headline = "ranks make the same call from different lines, which the strict guard refuses"
        raise _refused(comm, headers, [sites], headline)
    if headers[0].name:  # the user's own name says that it is one call
        return
    since.append(sites)
    del since[:-_KEPT]
    first = [calls[0] for calls in since]
    for rank in range(1, comm.world_size):
        lines = [calls[rank] for calls in since]
        if lines != first and Counter(lines) == Counter(first):
            raise _refused(comm, headers, since, "ranks made the same calls in another order")


def _refused(
    comm: Communicator,
    headers: Sequence[Header],
    since: Sequence[Sequence[object]],
    headline: str,
) -> DistmetricsError:
    """Build the error for calls, every rank's lines each time, that come in another order."""
    lines = {}
    for rank, header in enumerate(headers):
        sites = ", then ".join(str(calls[rank]) for calls in since[-4:])
        lines[rank] = f"{header.call().op}  {sites}"
    earlier = "What the earlier of them returned may be wrong on every rank."
    return MismatchError(
        headline,
        per_rank=lines,
        notes=[earlier] if len(since) > 1 else [],
        likely="a set, or a dict, that ranks walk in another order.",
        do=_SAME_ORDER,
        rank=comm.rank,
        peers=range(comm.world_size),
        site=headers[comm.rank].site,
    )
