"""What ranks did before this call: in what order, from which lines, and on the transport directly.

Calls that agree one by one can still be the wrong ones: two lines that make the same call, reached
in another order on two ranks, pair up silently. And what is called on a communicator directly is
not agreed upon at all; each rank counts it into a hash that travels with its next call, so that a
slip comes to light there. The same hash has the calls that an exception has ended.
"""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from distmetrics.collectives.manifest import Manifest
from distmetrics.collectives.pack import from_bytes, to_bytes
from distmetrics.collectives.reading import LARGEST_MANIFEST, not_ours, reading
from distmetrics.comm.base import Communicator, gather_padded, innermost, job_ranks
from distmetrics.comm.one_call import record_of
from distmetrics.errors import DistmetricsError, DivergedError, MismatchError, who
from distmetrics.liveness.settings import in_force
from distmetrics.liveness.verdict import Verdict

# Calls from unequal lines, since ranks were last at one line, that are compared.
_KEPT = 64
_SAME_ORDER = (
    "make every rank call the same collectives, in the same order; a name= for each lets ranks "
    "tell them apart."
)
# By the number of the call, in which this may be looked at again after an interrupt.
_lines: weakref.WeakKeyDictionary[Any, dict[int, tuple[Manifest, ...]]]
_lines = weakref.WeakKeyDictionary()


def step_of(comm: Communicator) -> tuple[int, int]:
    """Return the number of this rank's call, and a hash of what else it has done."""
    record = record_of(comm)
    return record.calls, record.past


class _History(NamedTuple):
    """The number of a rank's call, and what the report says of its earlier ones."""

    calls: int
    interrupts: list[str]
    direct_calls: list[str]

    @classmethod
    def read(cls, data: Any) -> _History:
        """Read what a peer has sent, or raise anything."""
        calls, interrupts, direct_calls = data
        return cls(int(calls), [*map(str, interrupts)], [*map(str, direct_calls)])


def refuse_histories(comm: Communicator) -> DistmetricsError:
    """Build the error for ranks that are at other calls, or have made others.

    Every rank must call this. Where a call was interrupted, no later call is trusted any more.
    """
    record = record_of(comm)
    if not record.told:
        mine = record.calls, [*record.interrupts], [*record.direct_calls]
        record.told = json.dumps(mine).encode()
    run = from_bytes(record.told).to(comm.device)
    sizes = [int(x) for x in comm.all_gather(torch.tensor([run.numel()], device=comm.device))]
    if not 0 <= min(sizes) <= max(sizes) <= LARGEST_MANIFEST:
        raise not_ours(f"histories of {sizes} bytes")
    per_rank = []
    for rank, row in enumerate(gather_padded(comm, run, max(sizes))):
        with reading("its earlier calls", rank):
            per_rank.append(_History.read(json.loads(to_bytes(row[: sizes[rank]]))))
    calls, interrupts, direct_calls = zip(*per_rank, strict=True)
    if len({*calls}) == 1 and not any(interrupts):
        return _refused_direct_calls(comm, direct_calls)
    ranks = job_ranks(comm)
    verdict = record.verdict = _out_of_step(ranks, calls, interrupts)
    return verdict.error(ranks[comm.rank])


def _out_of_step(
    ranks: Sequence[int], calls: Sequence[int], interrupts: Sequence[Sequence[str]]
) -> Verdict:
    """Return the verdict for ranks of which some have left a call that others made."""
    lines, peers = {}, []
    for rank, number, texts in zip(ranks, calls, interrupts, strict=True):
        lines[rank] = texts[-1] if texts else "made every call to its end"
        lines[rank] += f"; this is call {number}"
        if texts:
            peers.append(rank)
    if not peers:
        return Verdict(
            DivergedError,
            "ranks are at different calls: some have made more than others, and no number of "
            "theirs can be trusted",
            per_rank=lines,
            likely="a communicator of one's own that does not pass every call on.",
            do="make every rank call the same collectives, in the same order.",
        )
    return Verdict(
        DivergedError,
        f"{who(peers)} left a call by an exception and went on, so the ranks may be out of step",
        tuple(peers),
        lines,
        likely="an exception of a signal's handler (Ctrl-C, a timer) that was caught, or calls of "
        "two threads at the same time.",
        do="let it end the job; or bring all ranks to the same place by other means, and let each "
        "make a new GroupCommunicator there.",
    )


def _refused_direct_calls(
    comm: Communicator, per_rank: Sequence[Sequence[str]]
) -> DistmetricsError:
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
    if len({*blobs}) == 1:  # at one line: what ranks did before is in order
        if len(_lines):
            _lines.pop(innermost(comm), None)
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
    since = _lines.setdefault(innermost(comm), {})
    since[record_of(comm).calls] = manifests
    if len(since) > _KEPT:
        del since[min(since)]
    first = [calls[0].site for calls in since.values()]
    for rank in range(1, comm.world_size):
        lines = [calls[rank].site for calls in since.values()]
        if lines != first and Counter(lines) == Counter(first):
            raise _refused(comm, [*since.values()], "ranks made the same calls in another order")


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
