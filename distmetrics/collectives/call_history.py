"""What ranks did before this call: in what order, from which lines, and on the transport directly.

Calls that agree one by one can still be the wrong ones: two lines that make the same call, reached
in another order on two ranks, pair up silently. And what is called on a communicator directly is
not agreed upon at all; each rank counts it into a hash that travels with its next call, so that a
slip comes to light there.
"""

from __future__ import annotations

import json
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch

from distmetrics.collectives.manifest import Manifest
from distmetrics.collectives.pack import from_bytes, to_bytes
from distmetrics.collectives.reading import LARGEST_MANIFEST, not_ours, reading
from distmetrics.comm.base import Communicator, gather_padded
from distmetrics.errors import DistmetricsError, MismatchError
from distmetrics.liveness.settings import in_force

# Calls from unequal lines, since ranks were last at one line, that are compared.
_KEPT = 64
_SAME_ORDER = (
    "make every rank call the same collectives, in the same order; a name= for each lets ranks "
    "tell them apart."
)
_lines: weakref.WeakKeyDictionary[Any, deque[tuple[Manifest, ...]]] = weakref.WeakKeyDictionary()


def direct_calls_hash(comm: Communicator) -> int:
    """Return the hash of all calls of this rank on the communicator directly, 0 where none was."""
    return int(getattr(comm, "past", 0))


def refuse_direct_calls(comm: Communicator) -> DistmetricsError:
    """Build the error for ranks whose direct calls differ; every rank must call this."""
    calls: Sequence[str] = getattr(comm, "direct_calls", ())
    mine = from_bytes(json.dumps([*calls]).encode()).to(comm.device)
    sizes = [int(x) for x in comm.all_gather(torch.tensor([mine.numel()], device=comm.device))]
    if not 0 <= min(sizes) <= max(sizes) <= LARGEST_MANIFEST:
        raise not_ours(f"lists of direct calls of {sizes} bytes")
    per_rank: list[list[str]] = []
    for rank, row in enumerate(gather_padded(comm, mine, max(sizes))):
        with reading("its direct calls", rank):
            per_rank.append([str(call) for call in json.loads(to_bytes(row[: sizes[rank]]))])
    columns = [*zip_longest(*per_rank, fillvalue="no further call")]
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


def check_lines(comm: Communicator, blobs: Sequence[bytes]) -> None:
    """Refuse equal calls that ranks make from two lines in another order.

    In strict mode, any equal calls from different lines. Two lines alone are no error otherwise: a
    condition may have the same call on both its ways.

    Args:
        comm: who talks.
        blobs: every rank's encoded manifest; they mean the same call.

    Raises:
        MismatchError: the same on every rank.
    """
    if all(blob == blobs[0] for blob in blobs):  # at one line: what ranks did before is in order
        if len(_lines):
            _lines.pop(_innermost(comm), None)
        return
    manifests = tuple(Manifest.decode(blob, rank) for rank, blob in enumerate(blobs))
    mode = in_force().mode
    if mode == "off" or len({manifest.site for manifest in manifests}) == 1:
        return
    if mode == "strict":
        headline = "ranks make the same call from different lines, which the strict guard refuses"
        raise _refused(comm, [manifests], headline)
    if manifests[0].name:  # the user's own name says that it is one call
        return
    since = _lines.setdefault(_innermost(comm), deque(maxlen=_KEPT))
    since.append(manifests)
    first = [calls[0].site for calls in since]
    for rank in range(1, comm.world_size):
        lines = [calls[rank].site for calls in since]
        if lines != first and Counter(lines) == Counter(first):
            raise _refused(comm, [*since], "ranks made the same calls in another order")


def _innermost(comm: Any) -> Any:
    """Return the communicator that others pass their calls on to: all calls through it count."""
    while (inner := getattr(comm, "inner", None)) is not None:
        comm = inner
    return comm


def _refused(
    comm: Communicator, since: Sequence[Sequence[Manifest]], headline: str
) -> DistmetricsError:
    """Build the error for calls, every rank's each time, that come from lines in another order."""
    lines = {}
    for rank in range(comm.world_size):
        calls = [manifests[rank] for manifests in since]
        sites = ", then ".join(str(manifest.site) for manifest in calls[-4:])
        lines[rank] = f"{calls[-1].call().op}  {sites}"
    earlier = "What the earlier of them returned may be wrong on every rank."
    return MismatchError(
        headline,
        per_rank=lines,
        notes=[earlier] if len(since) > 1 else [],
        likely="a set, or a dict, that ranks walk in another order.",
        do=_SAME_ORDER,
        rank=comm.rank,
        peers=range(comm.world_size),
        site=since[-1][comm.rank].site,
    )
