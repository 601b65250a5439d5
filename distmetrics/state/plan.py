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

from distmetrics.collectives.exchange import follows
from distmetrics.collectives.manifest import LeafSpec, Manifest
from distmetrics.collectives.pack import Bucket, Layout, dtype_of, layout
from distmetrics.errors import MismatchError
from distmetrics.state.metric_record import agree_on_metrics
from distmetrics.state.spec import FIXED

UPDATES = "(updates)"  # a state of ours: how often each metric was updated, on all ranks together
SIZES = "sizes"  # the kind of what travels beside a list, so that it can be cut into its items


@dataclass(frozen=True, slots=True)
class Sent:
    """Where each state of one rank lies in the two runs of bytes that it sends.

    Attributes:
        inline: layout of the states of fixed size; ``bulk``: of the rest.
        inline_paths: their paths, in the order of the layout; ``bulk_paths`` likewise.
        place: for each path, its index in its layout; a state that shares another's tensor has that
            one's.
        items: for each path of kind "items", the form of the list, and the place of the items'
            sizes, if it needs any.
    """

    inline: Layout
    inline_paths: tuple[str, ...]
    bulk: Layout
    bulk_paths: tuple[str, ...]
    place: Mapping[str, int]
    items: Mapping[str, tuple[str, int | None]]


@dataclass(frozen=True, slots=True)
class StatePlan:
    """One state: how it is combined, and from which ranks.

    Attributes:
        path: of the state: the metric's path and the state's name.
        kind: as in :class:`~distmetrics.state.spec.StateSpec`.
        ranks: those that have something to add.
        dtype: of the result, to which all ranks' values can be promoted.
        shape: of one rank's value, for kinds of a fixed size.
        same_as: the path of a state that shares its tensor with this one on all ranks, or None.
    """

    path: str
    kind: str
    ranks: tuple[int, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    same_as: str | None


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Everything that a sync will do.

    Attributes:
        states: by path, in the order of the metrics; a state that no rank has touched is not among
            them.
        agreed: layout in which the states of fixed size of all ranks are combined.
        paths: of the states in the agreed layout.
        sent: what each rank sends.
        rides_along: whether the agreed layout fits into the first round.
        follow: bytes of each rank's lists that do not, and go in a second round.
        updated: for each metric, the ranks that have updated it.
        borrowing: places of the metrics of which some rank has no update, and other attributes
            than the ranks that have some.
    """

    states: Mapping[str, StatePlan]
    agreed: Layout
    paths: tuple[str, ...]
    sent: tuple[Sent, ...]
    rides_along: bool
    follow: tuple[int, ...]
    updated: tuple[tuple[int, ...], ...]
    borrowing: tuple[int, ...]

    @property
    def rounds(self) -> int:
        """Number of collectives: one, one more for lists, one for each bucket that rides not along.

        A large bucket of floating maxima or minima takes two, since NaN is reduced apart. A
        manifest too long for its part of the first round takes one more. Attributes that a rank
        borrows take one more, and so do large ones.
        """
        reduced = 0 if self.rides_along else sum(map(reductions, self.agreed.buckets))
        return 1 + any(self.follow) + reduced + bool(self.borrowing)

    def describe(self) -> str:
        """Write the plan as a table: buckets, bytes, rounds."""
        word = "collective" if self.rounds == 1 else "collectives"
        states = len(self.states.keys() - {UPDATES})
        lines = [f"{states} states, {len(self.sent)} ranks, {self.rounds} {word}"]
        how = "in the first round" if self.rides_along else "in a round of its own"
        for bucket in self.agreed.buckets:
            dtype = str(bucket.dtype).removeprefix("torch.")
            size = bucket.stop - bucket.start
            lines.append(
                f"  {bucket.key!s:5} {dtype:8} {len(bucket.members):4} tensors {size:10} bytes  "
                f"{how}"
            )
        for rank, sent in enumerate(self.sent):
            if size := sent.bulk.nbytes:
                nth = "second" if self.follow[rank] else "first"
                lines.append(f"  lists of rank {rank}: {size} bytes  in the {nth} round")
        if self.borrowing:
            count = f"{len(self.borrowing)} metric{'s' * (len(self.borrowing) > 1)}"
            lines.append(f"  attributes of {count}, for ranks without an update")
        return "\n".join(lines)


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
    decoded = {blob: Manifest.decode(blob) for blob in dict.fromkeys(blobs)}
    manifests = [decoded[blob] for blob in blobs]
    updated, borrowing = agree_on_metrics(manifests, rank)
    states: dict[str, StatePlan] = {}
    by_path: dict[str, dict[int, LeafSpec]] = {path: {} for path in order}
    for r, manifest in enumerate(manifests):
        for leaf in manifest.leaves:
            if leaf.note != SIZES:
                by_path[leaf.path][r] = leaf
    for path in order:
        if by_path[path]:
            states[path] = _state(path, by_path, manifests, rank)
    fixed = [s for s in states.values() if s.kind in FIXED and s.same_as is None]
    agreed = layout([s.dtype for s in fixed], [s.shape for s in fixed], [s.kind for s in fixed])
    layouts = {blob: sent_by(manifest.leaves) for blob, manifest in decoded.items()}
    sent = tuple(layouts[blob] for blob in blobs)
    sizes = [each.inline.nbytes for each in sent]
    rides_along = max(agreed.nbytes, *sizes) <= capacity
    # What is too large for the first round goes by other ways than the data of an exchange, unless
    # it is a list.
    follow = tuple(
        follows(size if size <= capacity else 0, each.bulk.nbytes, capacity)
        for size, each in zip(sizes, sent, strict=True)
    )
    paths = tuple(state.path for state in fixed)
    return SyncPlan(states, agreed, paths, sent, rides_along, follow, updated, borrowing)


@functools.lru_cache(maxsize=64)
def sent_by(leaves: tuple[LeafSpec, ...]) -> Sent:
    """Lay out what a rank with these leaves sends: by this it packs, and the others read."""
    runs: dict[bool, list[LeafSpec]] = {True: [], False: []}
    kinds: dict[bool, list[str]] = {True: [], False: []}
    place: dict[str, int] = {}
    items: dict[str, tuple[str, int | None]] = {}
    for leaf in leaves:
        kind, shared, form = parse_note(leaf.note)
        if shared:
            place[leaf.path] = place[shared]
        else:
            place[leaf.path] = len(runs[kind in FIXED])
            runs[kind in FIXED].append(leaf)
            kinds[kind in FIXED].append(kind)
        if form:
            items[leaf.path] = items[shared] if shared else (form, None)
        if kind == SIZES:
            path = leaf.path.removesuffix(sizes_of(""))
            items[path] = (items[path][0], place[leaf.path])
    layouts = [
        layout([dtype_of(leaf.dtype) for leaf in run], [leaf.shape for leaf in run], kinds[fixed])
        for fixed, run in runs.items()
    ]
    paths = [tuple(leaf.path for leaf in run) for run in runs.values()]
    return Sent(layouts[0], paths[0], layouts[1], paths[1], place, items)


def parse_note(note: str) -> tuple[str, str, str]:
    """Read a leaf's note: its kind, the path whose tensor it shares, the form of its items.

    >>> parse_note("items rows [4] =boxes")
    ('items', 'boxes', 'rows [4]')
    """
    text, _, shared = note.partition(" =")
    kind, _, form = text.partition(" ")
    return kind, shared, form


def sizes_of(path: str) -> str:
    """Return the path under which the sizes of a list's items travel."""
    return f"{path} ({SIZES})"


def _state(
    path: str,
    by_path: Mapping[str, Mapping[int, LeafSpec]],
    manifests: Sequence[Manifest],
    rank: int,
) -> StatePlan:
    leaves = by_path[path]
    notes = {r: parse_note(leaf.note) for r, leaf in leaves.items()}
    kind, *others = {note[0] for note in notes.values()}
    if others:
        raise _uneven(path, leaves, manifests, rank)
    ranks = tuple(leaves)
    # Ranks without elements have the dtype and shape of a filler, and those are not to be compared.
    filled = tuple(r for r, leaf in leaves.items() if 0 not in leaf.shape) or ranks[:1]
    if kind == "cat":
        ranks = filled
    dtypes = [dtype_of(leaves[r].dtype) for r in filled]
    dtype = functools.reduce(torch.promote_types, dtypes)
    first = 1 if kind == "cat" else 0  # the axis from which on shapes must be equal
    if kind in (*FIXED, "cat") and len({leaves[r].shape[first:] for r in ranks}) > 1:
        raise _uneven(path, leaves, manifests, rank)
    shared = {notes[r][1] for r in leaves}
    same_as = shared.pop() if len(shared) == 1 else ""
    if same_as and by_path[same_as].keys() != leaves.keys():
        same_as = ""
    return StatePlan(path, kind, ranks, dtype, leaves[ranks[0]].shape, same_as or None)


def _uneven(
    path: str, leaves: Mapping[int, LeafSpec], manifests: Sequence[Manifest], rank: int
) -> MismatchError:
    op = manifests[rank].call().op
    return MismatchError(
        f"{op}: the state {path} has shapes on different ranks that do not go together",
        per_rank={r: f"{leaf}  {manifests[r].site or ''}" for r, leaf in leaves.items()},
        notes=["No data was moved; every metric keeps its local state."],
        likely="metrics made with different arguments (num_classes, thresholds), or inputs of "
        "different width.",
        do="make the metric with the same arguments on every rank.",
        rank=rank,
        peers=leaves,
        site=manifests[rank].site,
    )
