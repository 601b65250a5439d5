"""What ranks tell each other before a sync, whether it goes together, and what will be done. Pure.

The plan is made of the ranks' headers alone, so all ranks make the same one, and it can be
printed and tested without a process. It is cached by the headers' bytes: an epoch that looks like
the last one plans nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.buckets import (
    Layout,
    LeafSpec,
    dtype_of,
    layout,
    pack,
    short_name,
    unpack,
)
from distmetrics.collectives.exchange import HASH_BYTES, LARGE_WORLD, frame_size
from distmetrics.collectives.header import Header, agree_on_dtensors, agree_on_tree, header_of
from distmetrics.errors import MismatchError, StateError
from distmetrics.message import Message, Shape, decode, reading
from distmetrics.metrics.adapters.base import Kind
from distmetrics.metrics.cost import Cost, count_of, gathered, reduced

REDUCED = ("sum", "mean", "max", "min")  # kinds of states that are folded to one tensor
FIXED = (*REDUCED, "stack")  # of a size that does not depend on the data
UPDATES = "(updates)"  # a state of ours: how often each metric was updated, on all ranks together
SentKind = Kind | Literal["sizes"]  # which travels beside "items"
_CAN_BE_ADDED = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
})  # fmt: skip


class StateEntry(LeafSpec, frozen=True):
    """One tensor that a rank sends: a state, or the sizes of the items of a list."""

    kind: SentKind = "sum"
    piece: str = ""  # of a DTensor: which one, and of which whole

    def __str__(self) -> str:
        return f"{super().__str__()} {self.kind} {self.piece}".rstrip()


class MetricRecord(Message, frozen=True):
    """What the other ranks must know of one rank's metric."""

    label: str  # path and class
    states: tuple[tuple[str, str, Shape], ...]  # name, kind, and shape before the first update
    arguments: tuple[tuple[str, str], ...]
    attributes: str  # a digest, the arguments among them
    is_updated: bool
    shows: str = ""  # the path of another metric whose state it shows

    @property
    def path(self) -> str:
        """Where the metric is, "" for one that was passed itself."""
        return self.label.rpartition(": ")[0]

    def __str__(self) -> str:
        states = [f"{name} {kind}{list(shape) or ''}" for name, kind, shape in self.states]
        arguments = [f"{name}={text}" if name else text for name, text in sorted(self.arguments)]
        return f"{self.label}({', '.join([*states, *arguments])})"

    def may_become(self, other: MetricRecord) -> bool:
        """Return True if an update may have made ``other`` of this, which has seen none.

        An argument that was left out, and the shapes of states, may come from the first batch.
        """
        same_kinds = [state[:2] for state in self.states] == [state[:2] for state in other.states]
        return (
            self.label == other.label
            and same_kinds
            and dict(self.arguments).items() <= dict(other.arguments).items()
            and (self.attributes != other.attributes or str(self) == str(other))
        )


class SyncSchema(Message, frozen=True):
    """What one rank holds: its metrics, and the tensors of their states in the order of sending."""

    metrics: tuple[MetricRecord, ...]
    states: tuple[StateEntry, ...]


def check_states(states: Sequence[StateEntry], order: Collection[str], rank: int) -> None:
    """Check what a rank with the same metrics tells of its states, whose paths are ``order``."""
    with reading("its states", rank):
        for state in states:
            is_known = state.path in order and is_reducible(state.kind, dtype_of(state.dtype))
            if state.kind == "sizes":
                is_known = state.dtype == "int64"
            if not is_known:
                raise ValueError(f"a state {state}")


@functools.cache
def is_reducible(kind: str, dtype: torch.dtype) -> bool:
    """Return True if torch can reduce tensors of this dtype in this way, or need not."""
    if kind in ("max", "min") and dtype.is_complex:
        return False
    return kind not in REDUCED or dtype in _CAN_BE_ADDED


def agree_on_metrics(
    headers: Sequence[Header], schemas: Sequence[SyncSchema], rank: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Check that all ranks have the same metrics; return who has updated each, and which borrow.

    A metric that was never updated need not be as one that was: an update may have set attributes,
    and taken shapes from the data.
    """
    records = [[*schema.metrics] for schema in schemas]
    updated = []
    borrowing = []
    for place, column in enumerate([*zip(*records, strict=False)]):
        ranks = tuple(r for r, record in enumerate(column) if record.is_updated)
        updated.append(ranks)
        if not 0 < len(ranks) < len(column):
            continue
        if len({record.attributes for record in column}) > 1:
            borrowing.append(place)
        for r, record in enumerate(column):
            if not record.is_updated and record.may_become(column[ranks[0]]):
                records[r][place] = column[ranks[0]]
    trees = ["; ".join(map(str, each)) for each in records]
    compared = [each.but(tree=tree) for each, tree in zip(headers, trees, strict=True)]
    agree_on_tree(compared, rank)
    agree_on_dtensors(headers, rank)
    return tuple(updated), tuple(borrowing)


class StatePlan(NamedTuple):
    """One state: how it is combined, and from which ranks."""

    path: str
    kind: SentKind
    ranks: tuple[int, ...]  # that have something to add; of a piece, that hold it
    dtype: torch.dtype  # to which all ranks' values can be promoted
    shape: tuple[int, ...]  # of one rank's value, for kinds of a fixed size
    piece: str = ""


def plan_of(path: str, leaves: Mapping[int, StateEntry], rank: int, world_size: int) -> StatePlan:
    """Return how one state becomes one; raise ValueError or RuntimeError if it cannot."""
    kinds = {leaf.kind for leaf in leaves.values()}
    if "cat" in kinds:  # items without dimensions are rows where others have rows
        kinds -= {"items"}
    (kind,) = kinds
    pieces = {leaf.piece for leaf in leaves.values()}
    if pieces != {""}:  # ranks that hold the same one reduce it
        if "" in pieces or len(leaves) < world_size:
            raise ValueError("pieces on some ranks alone")
        leaves = {r: leaf for r, leaf in leaves.items() if leaf.piece == leaves[rank].piece}
    ranks = tuple(leaves)
    # Ranks without elements have the dtype and shape of a filler, and those are not to be compared.
    filled = tuple(r for r, leaf in leaves.items() if 0 not in leaf.shape) or ranks[:1]
    shapes: set[tuple[int, ...]] = set()  # as far as they must be equal
    if kind in FIXED:
        shapes = {leaf.shape for leaf in leaves.values()}
    elif kind == "cat":
        ranks = filled
        shapes = {leaves[r].shape[1:] for r in ranks}
    if len(shapes) > 1:
        raise ValueError("shapes")
    dtype = functools.reduce(torch.promote_types, [dtype_of(leaves[r].dtype) for r in filled])
    first = leaves[ranks[0]]
    return StatePlan(path, kind, ranks, dtype, first.shape, first.piece)


def _uneven(
    path: str, leaves: Mapping[int, StateEntry], headers: Sequence[Header], rank: int
) -> MismatchError:
    return MismatchError(
        f"{headers[rank].call().op}: the state {path} has values on different ranks that do "
        "not go together",
        per_rank={r: f"{leaf}  {headers[r].site or ''}" for r, leaf in leaves.items()},
        notes=["No data was moved; every metric keeps its local state."],
        likely="metrics made with different arguments (num_classes, thresholds), or inputs of "
        "different width or kind.",
        do="make the metric with the same arguments on every rank.",
        rank=rank,
        peers=leaves,
        site=headers[rank].site,
    )


class Run(NamedTuple):
    """Where tensors lie in one run of bytes, and their paths in the order of the layout."""

    layout: Layout
    paths: tuple[str, ...]

    @classmethod
    def of(cls, tensors: Sequence[StateEntry | StatePlan]) -> Run:
        """Lay described tensors out by kind."""
        kinds = [each.kind for each in tensors]
        return cls(layout(tensors, kinds), tuple(each.path for each in tensors))

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


class Sent(NamedTuple):
    """Where each state of one rank lies in the bytes that it sends, inline before bulk."""

    inline: Run  # the states that are reduced
    bulk: Run  # the rest, and the sizes of lists' items

    def inline_bytes(self, capacity: int) -> int:
        """Return how many bytes of states that are reduced are sent: all that fit, or none."""
        return self.inline.nbytes if self.inline.nbytes <= capacity else 0


class SyncPlan(NamedTuple):
    """Everything that a sync will do."""

    # Those that some rank has touched; that of another path where a metric shows its state.
    states: Mapping[str, StatePlan]
    agreed: Run  # where the reduced states of all ranks lie while they are combined
    sent: tuple[Sent, ...]  # by each rank
    is_inline: bool  # whether the reduced states fit into the first round
    follow: int  # bytes of the longest run in a second round, where lists do not fit
    updated: tuple[tuple[int, ...], ...]  # for each metric, the ranks that have updated it
    borrowing: tuple[int, ...]  # places of metrics that take over attributes on some rank
    pieces: tuple[StatePlan, ...]
    allow_pickle: bool

    @property
    def cost(self) -> Cost:
        """What the sync costs, without the bytes of attributes, of pieces, and of long headers.

        In a large world lists are taken to have other lengths on other ranks, so that the hashes
        differ and frames are sent as well.
        """
        world_size = len(self.sent)
        frames = gathered(frame_size(world_size), world_size)
        total = frames
        if world_size > LARGE_WORLD:
            total = reduced(2 * HASH_BYTES, world_size)
            if any(state.kind not in FIXED for state in self.states.values()):
                total += frames
        if self.follow:
            total += gathered(self.follow, world_size)
        for bucket in () if self.is_inline else self.agreed.layout.buckets:
            if size := bucket.stop - bucket.start:
                total += reduced(size, world_size)
                # NaN is reduced apart.
                if bucket.key in ("max", "min") and bucket.dtype.is_floating_point:
                    total += reduced(size // bucket.dtype.itemsize, world_size)
        return total + Cost(bool(self.borrowing) + len(self.pieces))

    def describe(self) -> str:
        """Write the plan as a table: buckets, bytes, rounds."""
        states = len(self.states.keys() - {UPDATES})
        rounds = count_of(self.cost.rounds, "collective")
        lines = [f"{states} states, {len(self.sent)} ranks, {rounds}"]
        how = "in the first round" if self.is_inline else "in a round of its own"
        for bucket in self.agreed.layout.buckets:
            kind = f"{bucket.key:5} {short_name(bucket.dtype):8} {len(bucket.shapes):4} tensors"
            lines.append(f"  {kind} {bucket.stop - bucket.start:10} bytes  {how}")
        if longest := max(sent.bulk.nbytes for sent in self.sent):
            nth = "second" if self.follow else "first"
            lines.append(f"  lists and rows of up to {longest} bytes a rank  in the {nth} round")
        return "\n".join(lines)


# Few: lists change the headers with every sync, and in a large world they are many bytes.
@functools.lru_cache(maxsize=32)
def plan(blobs: tuple[bytes, ...], order: tuple[str, ...], rank: int, capacity: int) -> SyncPlan:
    """Make the plan from every rank's encoded header, or raise what all ranks raise.

    ``order``: the paths of all states; ``capacity``: bytes that ride along in the first round.
    """
    first = {blob: blobs.index(blob) for blob in dict.fromkeys(blobs)}
    headers = [header_of(blob, first[blob]) for blob in blobs]
    if len({header.op for header in headers}) > 1:  # another call tells nothing of metrics
        agree_on_tree(headers, rank)
    known = {
        blob: decode(SyncSchema, headers[sender].body, "its metrics", sender)
        for blob, sender in first.items()
    }
    schemas = [known[blob] for blob in blobs]
    updated, borrowing = agree_on_metrics(headers, schemas, rank)
    by_path: dict[str, dict[int, StateEntry]] = {path: {} for path in order}
    for blob, sender in first.items():
        check_states(known[blob].states, by_path.keys(), sender)
    for r, schema in enumerate(schemas):
        for entry in schema.states:
            if entry.kind != "sizes":
                by_path[entry.path][r] = entry
    own = {}
    for path, leaves in by_path.items():
        if leaves:
            try:
                own[path] = plan_of(path, leaves, rank, len(headers))
            except (RuntimeError, ValueError) as error:
                raise _uneven(path, leaves, headers, rank) from error
    agreed = Run.of([state for state in own.values() if state.kind in REDUCED and not state.piece])
    sent = tuple(sent_by(schema.states) for schema in schemas)
    longest = max(each.inline_bytes(capacity) + each.bulk.nbytes for each in sent)
    return SyncPlan(
        own | _shown(own, schemas, updated, headers[rank], rank),
        agreed,
        sent,
        max(agreed.nbytes, *[each.inline.nbytes for each in sent]) <= capacity,
        longest if longest > capacity else 0,
        updated,
        borrowing,
        tuple(state for state in own.values() if state.piece),
        headers[rank].allow_pickle,
    )


def _shown(
    states: Mapping[str, StatePlan],
    schemas: Sequence[SyncSchema],
    updated: Sequence[tuple[int, ...]],
    header: Header,
    rank: int,
) -> dict[str, StatePlan]:
    """Return the states of metrics that show those of another, by their own paths."""
    shown = {}
    for place, ranks in enumerate(updated):
        column = {r: schemas[r].metrics[place] for r in ranks}
        if len({metric.shows for metric in column.values()}) > 1:
            raise _lost(column, header, rank)
        for metric in [column[r] for r in ranks[:1]]:
            for name, *_ in metric.states:
                if (source := f"{metric.shows}.{name}") in states:
                    shown[f"{metric.path}.{name}"] = states[source]
    return shown


def _lost(column: Mapping[int, MetricRecord], header: Header, rank: int) -> StateError:
    path = next(iter(column.values())).path
    return StateError(
        f"{header.call().op}: on some ranks {path} shows the state of another metric, and has lost "
        "its own; other ranks with data differ",
        per_rank={r: f"{path} has the state of {x.shows or 'no other'}" for r, x in column.items()},
        notes=["No data was moved; every metric keeps its local state."],
        likely="compute groups: MetricCollection merges metrics whose states are equal after a "
        "rank's first batch, and updates one of them alone (Lightning-AI/torchmetrics#2596).",
        do="make the collection with compute_groups=False.",
        rank=rank,
        peers=[r for r, metric in column.items() if metric.shows],
        site=header.site,
    )


@functools.lru_cache(maxsize=64)
def sent_by(entries: tuple[StateEntry, ...]) -> Sent:
    """Lay out what a rank with these entries sends: by this it packs, and the others read."""
    inline = [entry for entry in entries if entry.kind in REDUCED and not entry.piece]
    bulk = [entry for entry in entries if entry.kind not in REDUCED]
    return Sent(Run.of(inline), Run.of(bulk))


def sizes_of(path: str) -> str:
    """Return the path under which the sizes of a list's items travel."""
    return f"{path} (sizes)"
