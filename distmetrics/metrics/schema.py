"""What ranks tell each other before a sync, and whether they have the same metrics. Pure."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from distmetrics.collectives.buckets import LeafSpec, dtype_of, to_bytes
from distmetrics.collectives.dtensor import Shared
from distmetrics.collectives.header import Header, agree_on_dtensors, agree_on_tree
from distmetrics.collectives.wire import DEEPEST
from distmetrics.comm.communicator import brief
from distmetrics.errors import Ranks, StateError
from distmetrics.message import Message, Shape, decode, not_ours, reading
from distmetrics.metrics.adapters.base import Kind, Piece
from distmetrics.metrics.ragged import Form

UNDECIDED = -1  # the first of a metric's group, where no groups were formed
_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size))
_LARGEST = 1 << 16  # bytes of a tensor that travels
_LONGEST = 1000  # items of a list, say, that travels
_SAMPLE = 1000  # elements of a larger tensor that are compared


class Attribute(NamedTuple):
    """What ranks compare of an attribute.

    Attributes:
        text: equal where values are; "" where there is no such attribute.
        travels: True for plain values, small tensors, and lists, tuples, sets and dicts of such.
        is_partial: True where the text tells of a part of the value alone: the whole is too large.
        value: what travels, or None.
    """

    text: str = ""
    travels: bool = True
    is_partial: bool = False
    value: Any = None


def are_equal(one: Any, other: Any) -> bool:
    """True for tensors, or lists of them, with the same elements on any device; NaN equals NaN."""
    if one is other:
        return True
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.shape != other.shape:
        return False
    other = other.to(one.device)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def digest_of(attributes: Mapping[str, Any]) -> str:
    """Return a short text that is equal where all attributes are."""
    if _PLAIN.issuperset(map(type, attributes.values())):
        return _digest(repr(attributes))
    return _digest(repr([(name, described(value).text) for name, value in attributes.items()]))


@functools.lru_cache(maxsize=1024)
def _digest(text: str) -> str:
    return _short_hash(text.encode())


def described(value: Any) -> Attribute:
    """Return what ranks compare of a value: of what is too large, the size and a sample."""
    try:
        attribute = _described(value)
    except RecursionError:
        attribute = _kept(f"a {type(value).__name__} nested too deeply, or holding itself")
    return attribute._replace(value=value) if attribute.travels else attribute


def _described(value: Any, depth: int = 0) -> Attribute:
    kind = type(value)
    if kind in _PLAIN:
        return Attribute(repr(value))
    if kind in (list, tuple, dict, set, frozenset):
        return _of_items(value, depth)
    if kind is Tensor and not (value.is_nested or value.is_meta) and value.layout is torch.strided:
        flat = value.detach().resolve_conj().resolve_neg().reshape(-1)
        step = _step(value.numel(), value.nbytes)
        return _of_elements(brief(value.dtype, value.shape), to_bytes(flat[::step]), step)
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufc":
        step = _step(value.size, value.nbytes)
        data = value.reshape(-1)[::step].tobytes()
        return _of_elements(f"{value.dtype}{list(value.shape)}", data, step)
    name = "torch.nn.Module" if isinstance(value, nn.Module) else kind.__qualname__
    return _kept(f"a {name}", is_partial=False)


def _kept(text: str, *, is_partial: bool = True) -> Attribute:
    return Attribute(text, travels=False, is_partial=is_partial)


def _of_items(value: Any, depth: int) -> Attribute:
    name = type(value).__name__
    if depth > DEEPEST:
        raise RecursionError
    if len(value) > _LONGEST:
        return _kept(f"a {name} of {len(value)}, too large to be sent")
    items = value.items() if isinstance(value, dict) else value
    parts = [_described(item, depth + 1) for item in items]
    if not all(part.travels for part in parts):
        return _kept(f"a {name}", is_partial=any(part.is_partial for part in parts))
    texts = [part.text for part in parts]
    ordered = texts if isinstance(value, list | tuple) else sorted(texts)
    return Attribute(f"{name}({', '.join(ordered)})")


def _step(count: int, nbytes: int) -> int:
    """Return the distance of the elements that are compared; 1 for what travels."""
    return 1 if nbytes <= _LARGEST else 2 + count // _SAMPLE


def _of_elements(text: str, data: bytes, step: int) -> Attribute:
    text = f"{text} {_short_hash(data)}"
    return Attribute(text) if step == 1 else _kept(f"{text}, too large to be sent")


def _short_hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


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


class Merged(NamedTuple):
    """The places of two metrics, of which the other shows the first one's state on some ranks."""

    first: int
    other: int
    ranks: tuple[int, ...]


def merged(
    firsts: Sequence[Sequence[int]],
    updated: Sequence[Sequence[bool]],
    paths: Sequence[str],
    headers: Sequence[Header],
    rank: int,
) -> tuple[Merged, ...]:
    """Return metrics that are merged on some ranks, where others with data have formed no groups.

    Those must compare their states: see :func:`check_merged`.

    Args:
        firsts: by rank and metric, the place of the metric whose state it shows, or UNDECIDED.
        updated: by rank and metric, whether it was updated.
        paths: of the metrics.
        headers: every rank's.
        rank: the rank that asks.

    Raises:
        StateError: a rank with data has formed groups that keep the metrics apart.
    """
    found = []
    for other, column in enumerate(zip(*firsts, strict=True)):
        for first in sorted({*column} - {UNDECIDED, other}):
            ranks = [r for r, place in enumerate(column) if place == first and updated[r][other]]
            with_data = [r for r, own in enumerate(updated) if own[first] or own[other]]
            pairs = {r: {firsts[r][first], firsts[r][other]} for r in with_data if ranks}
            undecided = [r for r, pair in pairs.items() if UNDECIDED in pair]
            apart = [r for r, pair in pairs.items() if len(pair) > 1 and r not in undecided]
            pair = Merged(first, other, tuple(ranks))
            if apart:
                raise lost(pair, apart, paths, headers[rank], rank, "No data was moved; every")
            if undecided:
                found.append(pair)
    return tuple(found)


def lost(
    pair: Merged,
    apart: Sequence[int],
    paths: Sequence[str],
    header: Header,
    rank: int,
    every: str = "Every",
) -> StateError:
    """Return the error for metrics that are merged on some ranks, and differ on others."""
    first, other = paths[pair.first], paths[pair.other]
    lines = dict.fromkeys(pair.ranks, f"one state for {first} and {other}")
    lines |= dict.fromkeys(apart, f"a state for {first}, and another for {other}")
    return StateError(
        [
            f"{header.call().op}: {other} shows the state of {first} on ",
            Ranks(pair.ranks),
            ", and has lost its own; on ",
            Ranks(apart),
            " they differ",
        ],
        per_rank={r: f"{line}  {header.site or ''}".rstrip() for r, line in lines.items()},
        notes=[f"{every} metric keeps its local state."],
        likely="compute groups: MetricCollection merges metrics whose states are equal after a "
        "rank's first batch, and updates one of them alone (Lightning-AI/torchmetrics#2596).",
        do="make the collection with compute_groups=False.",
        rank=rank,
        peers=pair.ranks,
        site=header.site,
    )
