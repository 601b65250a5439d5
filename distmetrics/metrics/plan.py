"""From what every rank holds to what will be sent and how it becomes one state. Pure.

The plan is made of the ranks' headers alone, so all ranks make the same one, and it can be
printed and tested without a process. It is cached by the headers' bytes: an epoch that looks like
the last one plans nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distmetrics.collectives.buckets import (
    Bucket,
    Layout,
    dtype_of,
    layout,
    pack,
    short_name,
    unpack,
)
from distmetrics.collectives.exchange import header_of
from distmetrics.collectives.header import Header, agree_on_tree
from distmetrics.errors import MismatchError
from distmetrics.metrics.adapters.base import Piece
from distmetrics.metrics.ragged import Form
from distmetrics.metrics.schema import (
    FIXED,
    UPDATES,
    Merged,
    StateEntry,
    agree_on_metrics,
    check_states,
    schema_of,
)


@dataclass(frozen=True, slots=True)
class StatePlan:
    """One state: how it is combined, and from which ranks.

    Attributes:
        path: of the state: the metric's path and the state's name.
        kind: as in :class:`~distmetrics.metrics.adapters.StateSpec`.
        ranks: those that have something to add.
        dtype: of the result, to which all ranks' values can be promoted.
        shape: of one rank's value, for kinds of a fixed size.
        same_as: the path of a state that shares its tensor with this one on all ranks, or None.
        piece: for "piece": which one; ``ranks`` are those that hold it.
    """

    path: str
    kind: str
    ranks: tuple[int, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    same_as: str | None
    piece: Piece | None = None


def plan_of(
    path: str,
    by_path: Mapping[str, Mapping[int, StateEntry]],
    headers: Sequence[Header],
    rank: int,
) -> StatePlan:
    """Return how one state becomes one.

    Args:
        path: of the state.
        by_path: what each rank tells of each state that it has touched.
        headers: every rank's.
        rank: the rank that asks.

    Raises:
        MismatchError: what the ranks have does not go together.
    """
    leaves = by_path[path]
    kinds = {leaf.kind for leaf in leaves.values()}
    kind = next(iter(kinds))
    if kinds == {"piece"}:
        return _piece(path, leaves, headers, rank)
    ranks = tuple(leaves)
    # Ranks without elements have the dtype and shape of a filler, and those are not to be compared.
    filled = tuple(r for r, leaf in leaves.items() if 0 not in leaf.shape) or ranks[:1]
    shapes: set[tuple[int, ...]] = set()  # as far as they must be equal
    if kind in FIXED:
        shapes = {leaf.shape for leaf in leaves.values()}
    elif kind == "cat":
        ranks = filled
        shapes = {leaves[r].shape[1:] for r in ranks}
    if len(kinds) > 1 or len(shapes) > 1:
        differing = "kinds of values" if len(kinds) > 1 else "shapes"
        raise _uneven(path, leaves, headers, rank, differing)
    dtypes = [dtype_of(leaves[r].dtype) for r in filled]
    try:
        dtype = functools.reduce(torch.promote_types, dtypes)
    except RuntimeError as error:  # there are dtypes that go with no other
        raise _uneven(path, leaves, headers, rank, "dtypes") from error
    sources = {leaf.same_as for leaf in leaves.values()}
    same_as = sources.pop() if len(sources) == 1 else ""
    if same_as and by_path[same_as].keys() != leaves.keys():
        same_as = ""
    return StatePlan(path, kind, ranks, dtype, leaves[ranks[0]].shape, same_as or None)


def _piece(
    path: str, leaves: Mapping[int, StateEntry], headers: Sequence[Header], rank: int
) -> StatePlan:
    """Plan a state of which ranks hold pieces: those that hold the same one reduce it."""
    if len(leaves) < len(headers):
        raise _uneven(path, leaves, headers, rank, "nothing, or pieces of a DTensor,")
    pieces = {r: leaf.piece for r, leaf in leaves.items()}
    ranks = tuple(r for r, piece in pieces.items() if piece == pieces[rank])
    if len({(leaves[r].dtype, leaves[r].shape) for r in ranks}) > 1:
        raise _uneven(path, leaves, headers, rank, "pieces")
    own = leaves[rank]
    return StatePlan(path, "piece", ranks, dtype_of(own.dtype), own.shape, None, pieces[rank])


def _uneven(
    path: str,
    leaves: Mapping[int, StateEntry],
    headers: Sequence[Header],
    rank: int,
    differing: str,
) -> MismatchError:
    op = headers[rank].call().op
    return MismatchError(
        f"{op}: the state {path} has {differing} on different ranks that do not go together",
        per_rank={r: f"{leaf}  {headers[r].site or ''}" for r, leaf in leaves.items()},
        notes=["No data was moved; every metric keeps its local state."],
        likely="metrics made with different arguments (num_classes, thresholds), or inputs of "
        "different width or kind.",
        do="make the metric with the same arguments on every rank.",
        rank=rank,
        peers=leaves,
        site=headers[rank].site,
    )


@dataclass(frozen=True, slots=True)
class Run:
    """Where tensors lie in one run of bytes, and their paths in the order of the layout."""

    layout: Layout
    paths: tuple[str, ...]

    @classmethod
    def of(
        cls, tensors: Sequence[StateEntry | StatePlan], keys: Sequence[str] | None = None
    ) -> Run:
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
    """Where each state of one rank lies in the bytes that it sends, inline ones before bulk ones.

    Attributes:
        inline: the states of fixed size; ``bulk``: the rest, and the sizes of lists' items.
        source: for each path, that of the state whose tensor it has: its own, or another's.
        forms: for each path whose value is a list of tensors, the form of the list.
    """

    inline: Run
    bulk: Run
    source: Mapping[str, str]
    forms: Mapping[str, Form]

    def inline_bytes(self, capacity: int) -> int:
        """Return how many bytes of states of fixed size are sent: all that fit, or none."""
        return self.inline.nbytes if self.inline.nbytes <= capacity else 0


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Everything that a sync will do.

    Attributes:
        states: by path, in the order of the metrics; a state that no rank has touched is not among
            them.
        agreed: where the states of fixed size of all ranks lie while they are combined.
        sent: what each rank sends.
        is_inline: whether the states of fixed size fit into the first round.
        follow: bytes of each rank that go in a second round: of those with lists that do not fit.
        updated: for each metric, the ranks that have updated it.
        borrowing: places of the metrics of which some rank has no update, and other attributes
            than the ranks that have some.
        merged: the metrics that show one state on some ranks, while others compare theirs.
        allow_pickle: whether objects of any class are unpickled.
    """

    states: Mapping[str, StatePlan]
    agreed: Run
    sent: tuple[Sent, ...]
    is_inline: bool
    follow: tuple[int, ...]
    updated: tuple[tuple[int, ...], ...]
    borrowing: tuple[int, ...]
    merged: tuple[Merged, ...]
    allow_pickle: bool

    @property
    def rounds(self) -> int:
        """Number of collectives.

        One; one more if lists do not fit inline; one per bucket that does not fit inline, two if
        it holds floating maxima or minima, since NaN is reduced apart. One more each for a header
        that is too long for a frame, attributes that a rank takes over, and compared states.
        """
        reduced = 0 if self.is_inline else sum(map(reductions, self.agreed.layout.buckets))
        pieces = sum(each.kind == "piece" for each in self.states.values())
        extra = bool(self.merged) + bool(self.borrowing) + pieces
        return 1 + any(self.follow) + reduced + extra

    def describe(self) -> str:
        """Write the plan as a table: buckets, bytes, rounds."""
        states = len(self.states.keys() - {UPDATES})
        rounds = count_of(self.rounds, "collective")
        lines = [f"{states} states, {len(self.sent)} ranks, {rounds}"]
        how = "in the first round" if self.is_inline else "in a round of its own"
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


# Few: lists change the headers with every sync, and in a large world they are many bytes.
@functools.lru_cache(maxsize=32)
def plan(blobs: tuple[bytes, ...], order: tuple[str, ...], rank: int, capacity: int) -> SyncPlan:
    """Make the plan from every rank's encoded header.

    Args:
        blobs: headers as sent, in rank order.
        order: paths of all states of the metrics, which the headers make equal on all ranks.
        rank: the rank that asks, for errors' attributes.
        capacity: bytes that ride along in the first round.

    Raises:
        MismatchError: the metrics differ between ranks, or a state has shapes that do not go
            together.
    """
    headers = [header_of(blob, blobs.index(blob)) for blob in blobs]
    if len({header.op for header in headers}) > 1:  # another call tells nothing of metrics
        agree_on_tree(headers, rank)
    first = {blob: blobs.index(blob) for blob in dict.fromkeys(blobs)}
    known = {blob: schema_of(headers[sender], sender) for blob, sender in first.items()}
    schemas = [known[blob] for blob in blobs]
    updated, borrowing, merged = agree_on_metrics(headers, schemas, rank)
    for blob, sender in first.items():
        check_states(known[blob].states, order, sender)
    by_path: dict[str, dict[int, StateEntry]] = {path: {} for path in order}
    for r, schema in enumerate(schemas):
        for entry in schema.states:
            if entry.kind != "sizes":
                by_path[entry.path][r] = entry
    states: dict[str, StatePlan] = {}
    for path, leaves in by_path.items():
        if leaves:
            states[path] = plan_of(path, by_path, headers, rank)
    fixed = [state for state in states.values() if state.kind in FIXED and state.same_as is None]
    agreed = Run.of(fixed, [state.kind for state in fixed])
    sent = tuple(sent_by(schema.states) for schema in schemas)
    is_inline = max(agreed.nbytes, *[each.inline.nbytes for each in sent]) <= capacity
    follow = []
    for each in sent:
        nbytes = each.inline_bytes(capacity) + each.bulk.nbytes
        follow.append(nbytes if nbytes > capacity else 0)
    allow_pickle = headers[rank].allow_pickle
    return SyncPlan(
        states, agreed, sent, is_inline, tuple(follow), updated, borrowing, merged, allow_pickle
    )


@functools.lru_cache(maxsize=64)
def sent_by(leaves: tuple[StateEntry, ...]) -> Sent:
    """Lay out what a rank with these leaves sends: by this it packs, and the others read."""
    inline: list[StateEntry] = []
    bulk: list[StateEntry] = []
    source: dict[str, str] = {}
    forms: dict[str, Form] = {}
    for leaf in leaves:
        source[leaf.path] = leaf.same_as or leaf.path
        if leaf.form is not None:
            forms[leaf.path] = leaf.form
        if not leaf.same_as and leaf.kind != "piece":
            (inline if leaf.kind in FIXED else bulk).append(leaf)
    fixed = Run.of(inline, [leaf.kind for leaf in inline])
    return Sent(fixed, Run.of(bulk), source, forms)


def sizes_of(path: str) -> str:
    """Return the path under which the sizes of a list's items travel."""
    return f"{path} (sizes)"
