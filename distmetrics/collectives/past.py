"""What ranks did before this call: in what order, from which lines, and by direct use of the
transport.

Calls that agree one by one can still be the wrong ones: two lines that make the same call, reached
in another order on two ranks, pair up silently. And what is called on a communicator directly is
not agreed upon at all; each rank counts it into a hash that travels with its next call, so that a
slip comes to light there.
"""

from __future__ import annotations

import json
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.manifest import Manifest
from distmetrics.comm.base import Communicator
from distmetrics.errors import DistmetricsError, MismatchError, compose
from distmetrics.liveness.settings import in_force

_KEPT = 64  # calls from unequal lines, since ranks were last at one line, that are compared
_SAME_ORDER = "make every rank call the same collectives, in the same order; a name= for each lets ranks tell them apart."
_lines: weakref.WeakKeyDictionary[Any, deque[tuple[Manifest, ...]]] = weakref.WeakKeyDictionary()


def past_of(comm: Communicator) -> int:
    """Return the hash of all that this rank called on the communicator directly, in that order; 0
    for nothing.
    """
    return int(getattr(comm, "past", 0))


def refuse_past(
    comm: Communicator, gather: Callable[[Tensor, int], list[Tensor]]
) -> DistmetricsError:
    """Build the error for ranks whose direct calls differ; every rank must call this. ``gather``:
    pads, and gathers.
    """
    last: Sequence[str] = getattr(comm, "direct_calls", ())
    mine = torch.frombuffer(bytearray(json.dumps([*last]).encode()), dtype=torch.uint8).to(
        comm.device
    )
    sizes = [
        int(size) for size in comm.all_gather(torch.tensor([mine.numel()], device=comm.device))
    ]
    rows = gather(mine, max(sizes))
    told = [json.loads(bytes(row[:size].tolist())) for row, size in zip(rows, sizes, strict=True)]
    first = next(
        (
            n
            for n in range(max(map(len, told)))
            if len({calls[n : n + 1].__repr__() for calls in told}) > 1
        ),
        0,
    )
    lines = {
        rank: calls[first] if first < len(calls) else "no further call"
        for rank, calls in enumerate(told)
    }
    text = compose(
        "ranks disagree on calls that were made on the communicator directly, before this one",
        lines,
        notes=["What those calls returned may be wrong on every rank."],
        likely="a collective under a condition, or in a loop, that not all ranks share.",
        do="make every rank call the same collectives; distmetrics.all_reduce and its kin "
        "compare before data moves.",
    )
    return MismatchError(text, rank=comm.rank, peers=range(comm.world_size))


def check_lines(comm: Communicator, blobs: Sequence[bytes]) -> None:
    """Refuse equal calls that two ranks make from their lines in another order; in strict mode,
    from other lines.

    Two lines alone are no error: a condition may have the same call on both its ways.

    Raises:
        MismatchError: the same on every rank.
    """
    if all(blob == blobs[0] for blob in blobs):
        at_one_line(comm)
        return
    made = tuple(Manifest.decode(blob) for blob in blobs)
    if len({manifest.site for manifest in made}) == 1:
        return
    mode = in_force().mode
    if mode == "off":
        return
    if mode == "strict":
        raise _refused(
            comm,
            [made],
            "ranks make the same call from different lines, which the strict guard refuses",
        )
    if made[0].name:  # the user's own name says that it is one call
        return
    since = _lines.setdefault(_innermost(comm), deque(maxlen=_KEPT))
    since.append(made)
    columns = [[manifests[rank].site for manifests in since] for rank in range(comm.world_size)]
    ordered = [sorted(map(str, column)) for column in columns]
    for rank in range(1, comm.world_size):
        if columns[rank] != columns[0] and ordered[rank] == ordered[0]:
            raise _refused(comm, [*since], "ranks made the same calls in another order")


def at_one_line(comm: Communicator) -> None:
    """Note that all ranks were at one line: what they did before is in order."""
    if len(_lines):
        _lines.pop(_innermost(comm), None)


def _innermost(comm: Any) -> Any:
    """Return the communicator that others pass their calls on to: what was called through any of
    them counts.
    """
    while (inner := getattr(comm, "inner", None)) is not None:
        comm = inner
    return comm


def _refused(
    comm: Communicator, since: Sequence[Sequence[Manifest]], headline: str
) -> DistmetricsError:
    lines = {}
    for rank in range(comm.world_size):
        made = [manifests[rank] for manifests in since]
        lines[rank] = f"{made[-1].call().op}  " + ", then ".join(
            str(manifest.site) for manifest in made[-4:]
        )
    notes = (
        ["What the earlier of them returned may be wrong on every rank."] if len(since) > 1 else []
    )
    site = since[-1][comm.rank].site
    text = compose(
        headline,
        lines,
        notes=notes,
        likely="a set, or a dict, that ranks walk in another order.",
        do=_SAME_ORDER,
    )
    return MismatchError(text, rank=comm.rank, peers=range(comm.world_size), site=site)
