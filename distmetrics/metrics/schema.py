"""What ranks tell each other before a sync, and whether they have the same metrics. Pure."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import torch

from distmetrics.collectives.buckets import LeafSpec, dtype_of
from distmetrics.collectives.dtensor import Shared
from distmetrics.collectives.header import Header, agree_on_dtensors, agree_on_tree
from distmetrics.collectives.message import Message, Shape, decode, not_ours, reading
from distmetrics.metrics.adapters.base import Kind, Piece
from distmetrics.metrics.compute_groups import UNDECIDED, Merged, merged
from distmetrics.metrics.ragged import Form

REDUCED = ("sum", "mean", "max", "min")  # kinds of states that are folded to one tensor
# Of a size that does not depend on the data: inline in the first round.
FIXED = (*REDUCED, "stack")
UPDATES = "(updates)"  # a state of ours: how often each metric was updated, on all ranks together
_CAN_BE_ADDED = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
})  # fmt: skip


class StateEntry(LeafSpec, frozen=True):
    """One tensor that a rank sends: a state, or the sizes of the items of a list.

    Attributes:
        kind: how the ranks' values become one; "sizes" for what travels beside a list.
        form: of the items, where the value is a list of tensors.
        same_as: the path of a state whose tensor this one shares, or "".
        piece: for "piece": how it is reduced, and which one it is.
    """

    kind: Kind | Literal["sizes"] = "sum"
    form: Form | None = None
    same_as: str = ""
    piece: Piece | None = None

    def __str__(self) -> str:
        parts = [super().__str__(), self.kind, str(self.form or self.piece or "")]
        parts.append(self.same_as and f"={self.same_as}")
        return " ".join(filter(None, parts))


class MetricRecord(Message, frozen=True):
    """What the other ranks must know of one rank's metric.

    Attributes:
        label: its path and class.
        states: name, kind, and shape before the first update, of each state.
        arguments: what it was made with: names and texts.
        attributes: a digest of its other attributes that are not states.
        is_updated: whether it was updated.
        shared: its states that are DTensors.
        first: the place of the metric whose state it shows, or UNDECIDED.
    """

    label: str
    states: tuple[tuple[str, str, Shape], ...]
    arguments: tuple[tuple[str, str], ...]
    attributes: str
    is_updated: bool
    shared: tuple[Shared, ...] = ()
    first: int = UNDECIDED

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
            and (self.differs(other) or str(self) == str(other))
        )

    def differs(self, other: MetricRecord) -> bool:
        """Return True if the two metrics have other attributes, arguments among them."""
        mine, theirs = (self.attributes, self.arguments), (other.attributes, other.arguments)
        return mine != theirs


class SyncSchema(Message, frozen=True):
    """What one rank holds: its metrics, and the tensors of their states in the order of sending."""

    metrics: tuple[MetricRecord, ...]
    states: tuple[StateEntry, ...]


@functools.lru_cache(maxsize=64)
def schema_of(header: Header, rank: int) -> SyncSchema:
    """Return what a rank has told.

    Raises:
        MismatchError: it is malformed.
    """
    return decode(SyncSchema, header.body, "its metrics", rank)


def check_states(states: Sequence[StateEntry], order: Sequence[str], rank: int) -> None:
    """Check what a rank with the same metrics tells of its states.

    Args:
        states: of that rank.
        order: paths of all states of the metrics.
        rank: the rank, for errors.

    Raises:
        MismatchError: there can be no such states.
    """
    places = {path: place for place, path in enumerate(order)}
    previous = -1
    own: dict[str, StateEntry] = {}  # those that share no other's tensor
    with reading("its states", rank):
        for state in states:
            if state.kind == "sizes" and state.dtype == "int64":
                continue
            is_known = is_reducible(state.kind, dtype_of(state.dtype))
            is_known = is_known and (state.kind == "piece") == (state.piece is not None)
            if state.path == UPDATES:
                is_known = (state.kind, state.dtype) == ("sum", "int64")
            if not is_known or state.kind == "sizes" or places[state.path] <= previous:
                raise ValueError(f"a state {state} in this place")
            previous = places[state.path]
            if not state.same_as:
                own[state.path] = state
                continue
            source = own[state.same_as]
            if (source.dtype, source.shape) != (state.dtype, state.shape):
                raise ValueError(f"a state {state} of another shape than {state.same_as}")


@functools.cache
def is_reducible(kind: str, dtype: torch.dtype) -> bool:
    """Return True if torch can reduce tensors of this dtype in this way, or need not."""
    if kind in ("max", "min") and dtype.is_complex:
        return False
    return kind not in REDUCED or dtype in _CAN_BE_ADDED


def agree_on_metrics(
    headers: Sequence[Header], schemas: Sequence[SyncSchema], rank: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], tuple[Merged, ...]]:
    """Check that all ranks have the same metrics.

    Return who has updated each, which of them borrow, and which are merged on some ranks while
    others have formed no groups.

    A metric that was never updated need not be as one that was: an update may have set attributes,
    and taken shapes from the data.
    """
    records = [[*schema.metrics] for schema in schemas]
    dtensors = [_dtensors_of(metrics) for metrics in records]
    firsts = [[record.first for record in metrics] for metrics in records]
    with_data = [[record.is_updated for record in metrics] for metrics in records]
    updated = []
    borrowing = []
    for place, column in enumerate([*zip(*records, strict=False)]):
        ranks = tuple(r for r, record in enumerate(column) if record.is_updated)
        updated.append(ranks)
        if not 0 < len(ranks) < len(column):
            continue
        if any(map(column[0].differs, column)):
            borrowing.append(place)
        for r, record in enumerate(column):
            if not record.is_updated and record.may_become(column[ranks[0]]):
                records[r][place] = column[ranks[0]]
    trees = ["; ".join(map(str, each)) for each in records]
    compared = [each.but(tree=tree) for each, tree in zip(headers, trees, strict=True)]
    agree_on_tree(compared, rank, [[record.path for record in each] for each in records])
    agree_on_dtensors(dtensors, headers, rank)
    if len({len(each) for each in records}) > 1:  # a label may hold what separates two
        raise not_ours("metrics that are not separate")
    paths = [record.path for record in records[0]]
    with reading("its compute groups"):
        pairs = merged(firsts, with_data, paths, headers, rank)
    return tuple(updated), tuple(borrowing), pairs


def _dtensors_of(metrics: Sequence[MetricRecord]) -> list[Shared]:
    every = [(record.label, shared) for record in metrics for shared in record.shared]
    return [shared.but(name=f"{shared.name} of {label}") for label, shared in every]
