"""What ranks tell each other before a sync, whether it goes together, and what will be done. Pure.

The plan is made of the ranks' headers alone, so all ranks make the same one, and it can be
printed and tested without a process. It is cached by the headers' bytes: an epoch that looks like
the last one plans nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from distmetrics.comm.communicator import Op, fold
from distmetrics.errors import MismatchError, StateError
from distmetrics.message import Message, Shape, decode, reading
from distmetrics.metrics.adapters.base import Kind

UPDATES = "(updates)"  # a state of ours: how often each metric was updated, on all ranks together
SentKind = Kind | Literal["sizes"]  # which travels beside "items"
# How the kinds of states that are folded to one tensor are; a mean is divided afterwards.
OPS: Mapping[str, Op] = {"sum": "sum", "mean": "sum", "max": "max", "min": "min"}
FIXED = (*OPS, "stack")  # kinds of a size that does not depend on the data


class StateEntry(LeafSpec, frozen=True):
    """One tensor that a rank sends: a state, or the sizes of the items of a list."""

    kind: SentKind = "sum"
    piece: str = ""  # of a DTensor: which one, and of which whole; its path ends in it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind in OPS and not _can_reduce(dtype_of(self.dtype), OPS[self.kind]):
            raise ValueError(f"is {self.dtype}, of which torch has no {self.kind}")
        if self.kind == "sizes" and self.dtype != "int64":
            raise ValueError(f"has sizes of {self.dtype}")

    def __str__(self) -> str:
        return f"{super().__str__()} {self.kind}"


@functools.cache
def _can_reduce(dtype: torch.dtype, op: Op) -> bool:
    x = torch.zeros(1, dtype=dtype, device="cpu")
    try:
        fold([x, x], op)
    except RuntimeError:  # that torch has no such operation
        return False
    return True


class MetricRecord(Message, frozen=True):
    """What the other ranks must know of one rank's metric."""

    path: str  # where the metric is, "" for one that was passed itself
    kind: str  # its class
    states: tuple[tuple[str, str, Shape], ...]  # name, kind, and shape before the first update
    arguments: tuple[tuple[str, str], ...]
    attributes: str  # a digest, the arguments among them
    is_updated: bool
    shows: str = ""  # the path of another metric whose state it shows

    def __str__(self) -> str:
        states = [f"{name} {kind}{list(shape) or ''}" for name, kind, shape in self.states]
        arguments = [f"{name}={text}" if name else text for name, text in sorted(self.arguments)]
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.kind}({', '.join([*states, *arguments])})"

    def may_become(self, other: MetricRecord) -> bool:
        """True if an update, which may bring arguments, may have made ``other`` of this."""
        return (
            (self.path, self.kind) == (other.path, other.kind)
            and [state[:2] for state in self.states] == [state[:2] for state in other.states]
            and dict(self.arguments).items() <= dict(other.arguments).items()
        )


class SyncSchema(Message, frozen=True):
    """What one rank holds: its metrics, and the tensors of their states in the order of sending."""

    metrics: tuple[MetricRecord, ...]
    states: tuple[StateEntry, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """A number of collectives, and the bytes that one rank receives in them.

    So a large state that can be reduced must be, and a small one is better gathered: a gather of a
    frame costs one latency, and needs no agreement before it.
    """

    rounds: int = 0
    received: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rounds + other.rounds, self.received + other.received)

    def __str__(self) -> str:
        return f"{count_of(self.rounds, 'collective')}, {size_of(self.received)}"


def gathered(nbytes: int, world_size: int) -> Cost:
    """Return the cost of an all_gather: every other rank's bytes."""
    return Cost(1, (world_size - 1) * nbytes)


def reduced(nbytes: int, world_size: int) -> Cost:
    """Return the cost of an all_reduce as a ring, which hardly depends on the world's size.

    Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
    """
    return Cost(1, -(-2 * (world_size - 1) * nbytes // world_size))


def count_of(number: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size_of(nbytes: float) -> str:
    """Return a number of bytes in words, as 1.5 MiB."""
    if nbytes < 1024:
        return f"{nbytes:.0f} bytes"
    power = min(int(math.log2(nbytes)) // 10, 3)
    return f"{nbytes / 1024**power:.1f} {('KiB', 'MiB', 'GiB')[power - 1]}"


def agree_on_metrics(
    headers: Sequence[Header], schemas: Sequence[SyncSchema], rank: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], dict[str, str]]:
    """Check that all ranks have the same metrics, where an update may have made differences.

    Returns:
        which ranks have updated each metric; which metrics borrow attributes; and, by the paths of
        states that some metrics show, those of the metrics that hold them.
    """
    records = [[*schema.metrics] for schema in schemas]
    updated, borrowing = [], []
    for place, column in enumerate([*zip(*records, strict=False)]):
        ranks = tuple(r for r, record in enumerate(column) if record.is_updated)
        updated.append(ranks)
        if not ranks:
            continue
        if len(ranks) < len(column) and len({record.attributes for record in column}) > 1:
            borrowing.append(place)
        for r, record in enumerate(column):
            if not record.is_updated and record.may_become(column[ranks[0]]):
                records[r][place] = column[ranks[0]]
    trees = ["; ".join(map(str, each)) for each in records]
    compared = [each.but(tree=tree) for each, tree in zip(headers, trees, strict=True)]
    agree_on_tree(compared, rank)
    agree_on_dtensors(headers, rank)
    shown = {}
    for place, ranks in enumerate(updated):
        shows = {r: records[r][place].shows for r in ranks}
        for r in ranks[:1]:
            metric = records[r][place]
            if len({*shows.values()}) > 1:
                raise _lost(metric.path, shows, headers[rank], rank)
            for name, *_ in metric.states if metric.shows else ():
                shown[f"{metric.path}.{name}"] = f"{metric.shows}.{name}"
    return tuple(updated), tuple(borrowing), shown


def _lost(path: str, shows: Mapping[int, str], header: Header, rank: int) -> StateError:
    return StateError(
        f"{header.call().op}: on some ranks {path} shows the state of another metric, and has lost "
        "its own; other ranks with data differ",
        per_rank={r: f"{path} has the state of {x or 'no other'}" for r, x in shows.items()},
        notes=["No data was moved; every metric keeps its local state."],
        likely="compute groups: MetricCollection merges metrics whose states are equal after a "
        "rank's first batch, and updates one of them alone (Lightning-AI/torchmetrics#2596).",
        do="make the collection with compute_groups=False.",
        rank=rank,
        peers=[r for r, other in shows.items() if other],
        site=header.site,
    )


class StatePlan(NamedTuple):
    """One state: how it is combined, and from which ranks."""

    path: str
    kind: SentKind
    ranks: tuple[int, ...]  # that have something to add
    dtype: torch.dtype  # to which all ranks' values can be promoted
    shape: tuple[int, ...]  # of one rank's value, for kinds of a fixed size


def plans_of(leaves: Mapping[int, StateEntry], world_size: int) -> dict[str, StatePlan]:
    """Return how a state, or each piece of it, becomes one; raise an error if it cannot."""
    pieces = dict.fromkeys(leaf.piece for leaf in leaves.values())
    if {*pieces} != {""} and ("" in pieces or len(leaves) < world_size):
        raise ValueError("pieces on some ranks alone")
    return {
        piece: _plan_of({r: leaf for r, leaf in leaves.items() if leaf.piece == piece})
        for piece in pieces
    }


def _plan_of(leaves: Mapping[int, StateEntry]) -> StatePlan:
    kinds = {leaf.kind for leaf in leaves.values()}
    if "cat" in kinds:  # items without dimensions are rows where others have rows
        kinds -= {"items"}
    (kind,) = kinds
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
    return StatePlan(first.path, kind, ranks, dtype, first.shape)


class RunLayout(NamedTuple):
    """Where tensors lie in one run of bytes, and their paths in the order of the layout."""

    layout: Layout
    paths: tuple[str, ...]

    @classmethod
    def of(cls, tensors: Sequence[StateEntry | StatePlan]) -> RunLayout:
        """Lay described tensors out by kind."""
        kinds = [each.kind for each in tensors]
        return cls(layout(tensors, kinds), tuple(each.path for each in tensors))

    def pack(self, tensors: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """Copy the tensors that belong into a run."""
        return pack([tensors[path] for path in self.paths], self.layout, device)

    def unpack(self, run: Tensor) -> dict[str, Tensor]:
        """Return the tensors of a run by their paths, as views of it."""
        return dict(zip(self.paths, unpack(run, self.layout), strict=True))


class Sent(NamedTuple):
    """Where each state of one rank lies in the bytes that it sends, inline before bulk."""

    inline: RunLayout  # the states that are reduced
    bulk: RunLayout  # the rest, and the sizes of lists' items
    start: int  # of bulk: all that are reduced are sent inline, or none

    def pack(self, tensors: Mapping[str, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the states that are reduced, also where they do not fit, and all that is sent."""
        inline, bulk = self.inline.pack(tensors, device), self.bulk.pack(tensors, device)
        sent = inline[: self.start]
        return inline, torch.cat([sent, bulk]) if bulk.numel() else sent


class SyncPlan(NamedTuple):
    """Everything that a sync will do."""

    # Those that some rank has touched; that of another path where a metric shows its state.
    states: Mapping[str, StatePlan]
    agreed: RunLayout  # where the reduced states of all ranks lie while they are combined
    sent: tuple[Sent, ...]  # by each rank
    is_inline: bool  # whether the reduced states fit into the first round
    follow: int  # bytes of the longest run in a second round, where lists do not fit
    updated: tuple[tuple[int, ...], ...]  # for each metric, the ranks that have updated it
    borrowing: tuple[int, ...]  # places of metrics that take over attributes on some rank
    allow_pickle: bool

    @property
    def cost(self) -> Cost:
        """What the sync costs, without the bytes of attributes and of long headers."""
        world_size = len(self.sent)
        frames = gathered(frame_size(world_size), world_size)
        total = frames
        if world_size > LARGE_WORLD:
            total = reduced(2 * HASH_BYTES, world_size)
            # Lists, which have other lengths on other ranks, make the hashes differ.
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
        return total + Cost(int(bool(self.borrowing)))

    def describe(self) -> str:
        """Write the plan as a table: buckets, bytes, rounds."""
        states = len(self.states.keys() - {UPDATES})
        rounds = count_of(self.cost.rounds, "collective")
        lines = [f"{states} states, {len(self.sent)} ranks, {rounds}"]
        how = "in the first round" if self.is_inline else "in a round of its own"
        for bucket in self.agreed.layout.buckets:
            kind = f"{bucket.key:5} {short_name(bucket.dtype):8} {len(bucket.shapes):4} tensors"
            lines.append(f"  {kind} {bucket.stop - bucket.start:10} bytes  {how}")
        if longest := max(sent.bulk.layout.nbytes for sent in self.sent):
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
    agree_on_tree(headers, rank)  # another call tells nothing of metrics
    known = {
        blob: decode(SyncSchema, headers[sender].body, "its metrics", sender)
        for blob, sender in first.items()
    }
    schemas = [known[blob] for blob in blobs]
    updated, borrowing, shown = agree_on_metrics(headers, schemas, rank)
    by_path: dict[str, dict[int, StateEntry]] = {path: {} for path in order}
    for r, schema in enumerate(schemas):
        with reading("its states", r):  # of these paths
            for entry in schema.states:
                if entry.kind != "sizes":
                    by_path[entry.path.removesuffix(entry.piece)][r] = entry
    made = {}  # by path and piece
    for path, leaves in by_path.items():
        if not leaves:
            continue
        try:
            made[path] = plans_of(leaves, len(headers))
        except (RuntimeError, ValueError) as error:
            raise MismatchError(
                f"{headers[rank].call().op}: the state {path} has values on different ranks that "
                "do not go together",
                per_rank={r: f"{leaf}  {headers[r].site or ''}" for r, leaf in leaves.items()},
                notes=["No data was moved; every metric keeps its local state."],
                likely="metrics made with different arguments (num_classes, thresholds), or inputs "
                "of different width or kind.",
                do="make the metric with the same arguments on every rank.",
                rank=rank,
                peers=leaves,
                site=headers[rank].site,
            ) from error
    states = {path + piece: x for path, each in made.items() for piece, x in each.items()}
    agreed = RunLayout.of([x for x in states.values() if x.kind in OPS])
    for path, source in shown.items():
        states |= {path + piece: x for piece, x in made.get(source, {}).items()}
    sent = tuple(sent_by(schema.states, capacity) for schema in schemas)
    longest = max(each.start + each.bulk.layout.nbytes for each in sent)
    return SyncPlan(
        states,
        agreed,
        sent,
        max(run.layout.nbytes for run in [agreed, *[x.inline for x in sent]]) <= capacity,
        longest if longest > capacity else 0,
        updated,
        borrowing,
        headers[rank].allow_pickle,
    )


@functools.lru_cache(maxsize=64)
def sent_by(entries: tuple[StateEntry, ...], capacity: int) -> Sent:
    """Lay out what a rank with these entries sends: by this it packs, and the others read."""
    inline = [entry for entry in entries if entry.kind in OPS]
    bulk = [entry for entry in entries if entry.kind not in OPS]
    first, rest = RunLayout.of(inline), RunLayout.of(bulk)
    return Sent(first, rest, first.layout.nbytes if first.layout.nbytes <= capacity else 0)


def sizes_of(path: str) -> str:
    """Return the path under which the sizes of a list's items travel."""
    return f"{path} (sizes)"
