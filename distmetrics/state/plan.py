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
from distmetrics.collectives.manifest import LeafSpec, Manifest, agree
from distmetrics.collectives.pack import Bucket, Layout, dtype_of, layout
from distmetrics.errors import MismatchError, compose
from distmetrics.state.learned import Choice, choose, is_learned
from distmetrics.state.spec import REDUCED

UPDATES = "(updates)"  # a state of ours: how often each metric was updated, on all ranks together
SIZES = "sizes"  # the kind of what travels beside a list, so that it can be cut into its items
INLINE = (*REDUCED, "stack")  # of a size that does not depend on the data: rides in the first round


@dataclass(frozen=True, slots=True)
class Sent:
    """Where each state of one rank lies in the two runs of bytes that it sends.

    Attributes:
        inline: layout of the reduced and stacked states; ``bulk``: of the rest.
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
        states: in the order of the metrics; a state that no rank has touched is not among them.
        agreed: layout in which reduced and stacked states of all ranks are combined.
        paths: of the states in the agreed layout.
        sent: what each rank sends.
        rides_along: whether the agreed layout fits into the first round.
        follow: bytes of each rank's lists that do not, and go in a second round.
        contributors: for each path, how many ranks have something to add.
        lists: the states that have a length of their own on each rank.
        aliases: ``(path, other)`` for each state that is the same tensor as another's on all ranks.
        complete: whether every state of the metrics is among ``states``.
        bucket_paths: of the states in each bucket of the agreed layout.
        alike: for each rank, whether what it sends has the agreed layout already.
        in_place: whether all that there is to do for states of fixed size is to reduce the bytes as
            they are.
        learned: attributes that are no states, of which some rank takes another's, or that are
            refused.
    """

    states: tuple[StatePlan, ...]
    agreed: Layout
    paths: tuple[str, ...]
    sent: tuple[Sent, ...]
    rides_along: bool
    follow: tuple[int, ...]
    contributors: Mapping[str, int]
    lists: tuple[StatePlan, ...]
    aliases: tuple[tuple[str, str], ...]
    complete: bool
    bucket_paths: tuple[tuple[str, ...], ...]
    alike: tuple[bool, ...]
    in_place: bool
    learned: tuple[Choice, ...]

    @property
    def rounds(self) -> int:
        """Number of data rounds: one, one more for lists and one for each bucket too large to ride
        along.

        A large bucket of floating maxima or minima takes two, since NaN is reduced apart; a
        manifest too long for its part of the first round takes one more, and so does a large
        attribute that is no state, where a rank lacks it.
        """
        sources = {choice.source for choice in self.learned if choice.broadcast}
        return (
            1
            + any(self.follow)
            + len(sources)
            + (0 if self.rides_along else sum(map(reductions, self.agreed.buckets)))
        )

    def pickled(self, path: str) -> bool:
        """Whether a state is a list of anything, as its ranks have pickled it."""
        return any(state.path == path and state.kind == "object" for state in self.lists)

    def describe(self) -> str:
        """Write the plan as a table: buckets, bytes, rounds."""
        word = "collective" if self.rounds == 1 else "collectives"
        states = sum(state.path != UPDATES for state in self.states)
        lines = [f"{states} states, {len(self.sent)} ranks, {self.rounds} {word}"]
        for bucket in self.agreed.buckets:
            how = "in the first round" if self.rides_along else "in a round of its own"
            dtype = str(bucket.dtype).removeprefix("torch.")
            size = bucket.stop - bucket.start
            lines.append(
                f"  {bucket.key!s:5} {dtype:8} {len(bucket.members):4} tensors {size:10} bytes  "
                f"{how}"
            )
        for rank, sent in enumerate(self.sent):
            if sent.bulk.nbytes:
                how = "second" if self.follow[rank] else "first"
                lines.append(
                    f"  lists of rank {rank}: {sent.bulk.nbytes} bytes  in the {how} round"
                )
        for choice in self.learned:
            how = (
                "broadcast"
                if choice.broadcast
                else "refused"
                if choice.refusal
                else "in the manifest"
            )
            lines.append(f"  {choice.path} of rank {choice.source}: {choice.nbytes} bytes  {how}")
        return "\n".join(lines)


def reductions(bucket: Bucket) -> int:
    """How many collectives a bucket takes that does not ride along."""
    if bucket.start == bucket.stop:
        return bucket.key == "stack"
    return 2 if bucket.key in ("max", "min") and bucket.dtype.is_floating_point else 1


@functools.lru_cache(
    maxsize=32
)  # lists change the manifests with every sync, and in a large world they are many bytes
def plan(blobs: tuple[bytes, ...], order: tuple[str, ...], rank: int, capacity: int) -> SyncPlan:
    """Make the plan from every rank's encoded manifest.

    Args:
        blobs: manifests as sent, in rank order.
        order: paths of all states of the metrics, which the manifests' trees make equal on all
            ranks.
        rank: the rank that asks, for errors' attributes.
        capacity: bytes that ride along in the first round.

    Raises:
        MismatchError: the metrics differ between ranks, or a state has shapes that do not go
            together.
    """
    decoded = {
        blob: Manifest.decode(blob) for blob in dict.fromkeys(blobs)
    }  # most often all ranks' are one
    manifests = [decoded[blob] for blob in blobs]
    agree(manifests, rank, leaf_key=None)
    by_path: dict[str, dict[int, LeafSpec]] = {path: {} for path in order}
    for r, manifest in enumerate(manifests):
        for leaf in manifest.leaves:
            if leaf.note != SIZES and not is_learned(leaf):
                by_path[leaf.path][r] = leaf
    states = tuple(_state(path, by_path, manifests, rank) for path in order if by_path[path])
    fixed = [state for state in states if state.kind in INLINE and state.same_as is None]
    agreed = layout([s.dtype for s in fixed], [s.shape for s in fixed], [s.kind for s in fixed])
    layouts = {blob: sent_by(manifest.leaves) for blob, manifest in decoded.items()}
    sent = tuple(layouts[blob] for blob in blobs)
    contributors = {state.path: len(state.ranks) for state in states}
    rides_along = max(agreed.nbytes, *(each.inline.nbytes for each in sent)) <= capacity
    # What is too large for the first round goes by other ways than the data of an exchange, unless
    # it is a list.
    alone = [each.inline.nbytes if each.inline.nbytes <= capacity else 0 for each in sent]
    follow = tuple(
        follows(size, each.bulk.nbytes, capacity) for size, each in zip(alone, sent, strict=True)
    )
    lists = tuple(state for state in states if state.kind not in INLINE and state.same_as is None)
    aliases = tuple((state.path, state.same_as) for state in states if state.same_as is not None)
    paths = tuple(state.path for state in fixed)
    complete = len(states) == len(order)
    bucket_paths = tuple(
        tuple(paths[index] for index in bucket.members) for bucket in agreed.buckets
    )
    alike = tuple(each.inline == agreed and each.inline_paths == paths for each in sent)
    in_place = rides_along and all(alike) and all(map(_as_it_is, agreed.buckets))
    learned = choose(manifests)
    return SyncPlan(
        states,
        agreed,
        paths,
        sent,
        rides_along,
        follow,
        contributors,
        lists,
        aliases,
        complete,
        bucket_paths,
        alike,
        in_place,
        learned,
    )


def _as_it_is(bucket: Bucket) -> bool:
    """Whether a bucket is reduced in its own dtype: half precision, bools and the mean of integers
    are not.
    """
    if bucket.key == "mean":
        return bucket.dtype in (torch.float32, torch.float64)
    return bucket.key in REDUCED and bucket.dtype not in (torch.float16, torch.bfloat16, torch.bool)


def sent_by(leaves: Sequence[LeafSpec]) -> Sent:
    """Lay out what a rank with these leaves sends; the sender packs by it and the receivers read by
    it.
    """
    runs: dict[bool, list[LeafSpec]] = {True: [], False: []}
    place: dict[str, int] = {}
    items: dict[str, tuple[str, int | None]] = {}
    for leaf in leaves:
        if is_learned(leaf):
            continue
        kind, shared, form = parse_note(leaf.note)
        if shared:
            place[leaf.path] = place[shared]
        else:
            place[leaf.path] = len(runs[kind in INLINE])
            runs[kind in INLINE].append(leaf)
        if form:
            items[leaf.path] = items[shared] if shared else (form, None)
        if kind == SIZES:
            path = leaf.path.removesuffix(sizes_of(""))
            items[path] = (items[path][0], place[leaf.path])
    layouts = [
        layout(
            [dtype_of(leaf.dtype) for leaf in run],
            [leaf.shape for leaf in run],
            [leaf.note[:5] for leaf in run],
        )
        for run in (runs[True], runs[False])
    ]
    paths = [tuple(leaf.path for leaf in run) for run in (runs[True], runs[False])]
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
    dtype = dtype_of(leaves[filled[0]].dtype)
    for r in filled[1:]:
        dtype = torch.promote_types(dtype, dtype_of(leaves[r].dtype))
    first = 1 if kind == "cat" else 0  # the axis from which on shapes must be equal
    if kind in (*INLINE, "cat") and len({leaves[r].shape[first:] for r in ranks}) > 1:
        raise _uneven(path, leaves, manifests, rank)
    shared = {notes[r][1] for r in leaves}
    same_as = shared.pop() if len(shared) == 1 else ""
    if same_as and by_path[same_as].keys() != leaves.keys():
        same_as = ""
    return StatePlan(path, kind, ranks, dtype, leaves[ranks[0]].shape, same_as or None)


def _uneven(
    path: str, leaves: Mapping[int, LeafSpec], manifests: Sequence[Manifest], rank: int
) -> MismatchError:
    lines = {r: f"{leaf}  {manifests[r].site or ''}" for r, leaf in leaves.items()}
    text = compose(
        f"{manifests[rank].call().op}: the state {path} has shapes on different ranks that do "
        "not go together",
        lines,
        notes=["No data was moved; every metric keeps its local state."],
        likely="metrics made with different arguments (num_classes, thresholds), or inputs of "
        "different width.",
        do="make the metric with the same arguments on every rank.",
    )
    return MismatchError(text, rank=rank, peers=leaves, site=manifests[rank].site)
