"""From what every rank holds to what will be sent and how it becomes one state. Pure.

The plan is made of the ranks' manifests alone, so all ranks make the same one, and it can be
printed and tested without a process. It is cached by the manifests' bytes: an epoch that looks like
the last one plans nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distmetrics.collectives.exchange import follows
from distmetrics.collectives.manifest import Manifest
from distmetrics.collectives.pack import (
    Bucket,
    Layout,
    LeafSpec,
    layout,
    pack,
    short_name,
    unpack,
)
from distmetrics.collectives.reading import reading
from distmetrics.state.compute_groups import Merged
from distmetrics.state.metric_record import agree_on_metrics
from distmetrics.state.received import FIXED, SIZES, UPDATES, check_leaves, parse_note
from distmetrics.state.state_plan import StatePlan, plan_of


@dataclass(frozen=True, slots=True)
class Run:
    """Where tensors lie in one run of bytes, and their paths in the order of the layout."""

    layout: Layout
    paths: tuple[str, ...]

    @classmethod
    def of(cls, tensors: Sequence[LeafSpec | StatePlan], keys: Sequence[str] | None = None) -> Run:
        """Lay described tensors out."""
        return cls(layout(tensors, keys), tuple(each.path for each in tensors))

    @property
    def nbytes(self) -> int:
        """Length of the run."""
        return self.layout.nbytes

    def pack(self, tensors: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """Copy the tensors that belong into a run."""
        return pack([tensors[path] for path in self.paths], self.layout, device)

    def unpack(self, run: Tensor) -> dict[str, Tensor]:
        """Return the tensors of a run by their paths, as views of it."""
        return dict(zip(self.paths, unpack(run, self.layout), strict=True))


@dataclass(frozen=True, slots=True)
class Sent:
    """Where each state of one rank lies in the two runs of bytes that it sends.

    Attributes:
        inline: the states of fixed size; ``bulk``: the rest, and the sizes of lists' items.
        source: for each path, that of the state whose tensor it has: its own, or another's.
        forms: for each path whose value is a list of tensors, the form of the list.
    """

    inline: Run
    bulk: Run
    source: Mapping[str, str]
    forms: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Everything that a sync will do.

    Attributes:
        states: by path, in the order of the metrics; a state that no rank has touched is not among
            them.
        agreed: where the states of fixed size of all ranks lie while they are combined.
        sent: what each rank sends.
        rides_along: whether the states of fixed size fit into the first round.
        follow: bytes of each rank's lists that do not, and go in a second round.
        updated: for each metric, the ranks that have updated it.
        borrowing: places of the metrics of which some rank has no update, and other attributes
            than the ranks that have some.
        merged: the metrics that show one state on some ranks, while others compare theirs.
        allow_pickle: whether objects of any class are unpickled.
    """

    states: Mapping[str, StatePlan]
    agreed: Run
    sent: tuple[Sent, ...]
    rides_along: bool
    follow: tuple[int, ...]
    updated: tuple[tuple[int, ...], ...]
    borrowing: tuple[int, ...]
    merged: tuple[Merged, ...]
    allow_pickle: bool

    @property
    def rounds(self) -> int:
        """Number of collectives: one, one more for lists, one for each bucket that rides not along.

        A large bucket of floating maxima or minima takes two, since NaN is reduced apart. A
        manifest too long for its part of the first round takes one more. Attributes that a rank
        borrows take one more, and so do large ones; and states that are compared.
        """
        reduced = 0 if self.rides_along else sum(map(reductions, self.agreed.layout.buckets))
        pieces = sum(each.kind == "piece" for each in self.states.values())
        extra = bool(self.merged) + bool(self.borrowing) + pieces
        return 1 + any(self.follow) + reduced + extra

    def describe(self) -> str:
        """Write the plan as a table: buckets, bytes, rounds."""
        states = len(self.states.keys() - {UPDATES})
        rounds = count_of(self.rounds, "collective")
        lines = [f"{states} states, {len(self.sent)} ranks, {rounds}"]
        how = "in the first round" if self.rides_along else "in a round of its own"
        for bucket in self.agreed.layout.buckets:
            kind = f"{bucket.key:5} {short_name(bucket.dtype):8} {len(bucket.members):4} tensors"
            lines.append(f"  {kind} {bucket.stop - bucket.start:10} bytes  {how}")
        for rank, sent in enumerate(self.sent):
            if size := sent.bulk.nbytes:
                nth = "second" if self.follow[rank] else "first"
                lines.append(f"  lists of rank {rank}: {size} bytes  in the {nth} round")
        if self.borrowing:
            metrics = count_of(len(self.borrowing), "metric")
            lines.append(f"  attributes of {metrics}, for ranks without an update")
        if self.merged:
            lines.append("  whether states are equal that a compute group of some ranks shares")
        return "\n".join(lines)


def count_of(number: int, noun: str) -> str:
    """Return a number of things in words.

    >>> count_of(1, "metric"), count_of(2, "metric")
    ('1 metric', '2 metrics')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def reductions(bucket: Bucket) -> int:
    """Return how many collectives a bucket takes that does not ride along."""
    if bucket.start == bucket.stop:
        return bucket.key == "stack"
    return 2 if bucket.key in ("max", "min") and bucket.dtype.is_floating_point else 1


# Few: lists change the manifests with every sync, and in a large world they are many bytes.
@functools.lru_cache(maxsize=32)
def plan(blobs: tuple[bytes, ...], order: tuple[str, ...], rank: int, capacity: int) -> SyncPlan:
    """Make the plan from every rank's encoded manifest.

    Args:
        blobs: manifests as sent, in rank order.
        order: paths of all states of the metrics, which the manifests make equal on all ranks.
        rank: the rank that asks, for errors' attributes.
        capacity: bytes that ride along in the first round.

    Raises:
        MismatchError: the metrics differ between ranks, or a state has shapes that do not go
            together.
    """
    # Most often all ranks' are one.
    decoded = {blob: Manifest.decode(blob, blobs.index(blob)) for blob in dict.fromkeys(blobs)}
    manifests = [decoded[blob] for blob in blobs]
    updated, borrowing, merged = agree_on_metrics(manifests, rank)
    for blob, manifest in decoded.items():
        with reading("its states", blobs.index(blob)):
            check_leaves(manifest.leaves, order)
    by_path: dict[str, dict[int, LeafSpec]] = {path: {} for path in order}
    for r, manifest in enumerate(manifests):
        for leaf in manifest.leaves:
            if leaf.note != SIZES:
                by_path[leaf.path][r] = leaf
    states: dict[str, StatePlan] = {}
    for path, leaves in by_path.items():
        if leaves:
            states[path] = plan_of(path, by_path, manifests, rank)
    fixed = [state for state in states.values() if state.kind in FIXED and state.same_as is None]
    agreed = Run.of(fixed, [state.kind for state in fixed])
    layouts = {blob: sent_by(manifest.leaves) for blob, manifest in decoded.items()}
    sent = tuple(layouts[blob] for blob in blobs)
    rides_along = max(agreed.nbytes, *[each.inline.nbytes for each in sent]) <= capacity
    follow = []
    for each in sent:
        # What is too large for the first round goes by other ways than the data of an exchange,
        # unless it is a list.
        riding = each.inline.nbytes if each.inline.nbytes <= capacity else 0
        follow.append(follows(riding, each.bulk.nbytes, capacity))
    allow_pickle = manifests[rank].allow_pickle
    return SyncPlan(
        states, agreed, sent, rides_along, tuple(follow), updated, borrowing, merged, allow_pickle
    )


@functools.lru_cache(maxsize=64)
def sent_by(leaves: tuple[LeafSpec, ...]) -> Sent:
    """Lay out what a rank with these leaves sends: by this it packs, and the others read."""
    inline: list[LeafSpec] = []
    bulk: list[LeafSpec] = []
    source: dict[str, str] = {}
    forms: dict[str, str] = {}
    for leaf in leaves:
        kind, shared, form = parse_note(leaf.note)
        source[leaf.path] = shared or leaf.path
        if form:
            forms[leaf.path] = form
        if not shared and kind != "piece":
            (inline if kind in FIXED else bulk).append(leaf)
    fixed = Run.of(inline, [leaf.note for leaf in inline])  # the note is the kind of state
    return Sent(fixed, Run.of(bulk), source, forms)


def sizes_of(path: str) -> str:
    """Return the path under which the sizes of a list's items travel."""
    return f"{path} ({SIZES})"
