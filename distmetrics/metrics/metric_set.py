"""The metrics of one sync: read, turned into tensors that can be sent, combined and put back."""

from __future__ import annotations

import copy
import functools
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pickle import PicklingError
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.buckets import short_name, unsendable, wide_dtype
from distmetrics.collectives.dtensor import Shared
from distmetrics.collectives.exchange import check_memory, inline_capacity
from distmetrics.collectives.header import Header, Problem, shorten
from distmetrics.collectives.ops import reduce_large
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.communicator import Communicator, fold
from distmetrics.errors import Site, StateError
from distmetrics.message import encode, reading
from distmetrics.metrics.adapters.base import WHOLE, StateSpec, Target, are_equal, parts_of
from distmetrics.metrics.attributes import PLAIN, described
from distmetrics.metrics.plan import (
    OPS,
    UPDATES,
    MetricRecord,
    Sent,
    SentKind,
    StateEntry,
    StatePlan,
    SyncPlan,
    SyncSchema,
    sent_by,
    sizes_of,
)

ABSENT = object()  # read in place of an attribute that is not in a metric's storage
Values = list[dict[str, Any]]  # for each metric, values by the names in its storage


class State(NamedTuple):
    """One state of a metric, and its local value."""

    path: str
    place: int  # of its metric
    spec: StateSpec
    value: Any

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to send."""
        return self.value is ABSENT or (isinstance(self.value, list) and not self.value)


class MetricSet:
    """Metrics that are synced together, in an order that all ranks share."""

    def __init__(self, targets: Sequence[Target], comm: Communicator) -> None:
        self.targets = targets
        self.comm = comm  # over which they are synced
        self.problem: Problem | None = None  # why they cannot be synced: all ranks must hear of it
        self.plan: SyncPlan | None = None
        self.before: Values = [dict(target.storage) for target in targets]
        self.shared: list[Shared] = []  # states that are DTensors
        self.updates: list[int] = []  # most metrics say it in their storage
        self.states: list[State] = []
        for place, (target, storage) in enumerate(zip(targets, self.before, strict=True)):
            count = storage.get(target.adapter.counter)
            self.updates.append(count or target.adapter.updates(target.metric))
            for spec in target.states:
                path = f"{target.path}.{spec.name}" if target.path else spec.name
                value = storage if spec.name == WHOLE else storage.get(spec.name, ABSENT)
                self.states.append(State(path, place, spec, value))

    @property
    def order(self) -> tuple[str, ...]:
        """Return the paths of all states, that of the update counts first."""
        return (UPDATES, *[state.path for state in self.states])

    def held(self, place: int) -> list[Any]:
        """Return the local values of one metric's states."""
        return [self.before[place].get(spec.name) for spec in self.targets[place].states]

    @contextmanager
    def holding(self, values: Values) -> Iterator[None]:
        """Hold other values inside the block; the local state is put back whatever happens.

        Everything was read before the first change, so an interrupt at any point loses nothing.
        What is reset in the block is reset afterwards, unless the block raises.
        """
        reset = []
        try:
            for target, new in zip(self.targets, values, strict=True):
                target.storage.update(new)
            yield
            reset = [x.metric for x in self.targets if x.adapter.flag and not x.is_synced]
        finally:
            try:
                self._put_back(values)
            except BaseException:  # a handler of a signal may raise half-way
                self._put_back(values)
                raise
        for metric in reset:
            metric.reset()

    def _put_back(self, written: Values) -> None:
        """Put back what ``written`` has replaced, and undo all that an update changed meanwhile."""
        for target, before, new in zip(self.targets, self.before, written, strict=True):
            storage, counter = target.storage, target.adapter.counter
            is_updated = not counter or storage.get(counter) != new[counter]
            for name in {*storage, *before} if is_updated else new:
                if name in before:
                    storage[name] = before[name]
                else:
                    storage.pop(name, None)

    def placed(self, combined: Mapping[str, Any], updates: Sequence[int]) -> Values:
        """Return the combined states by metric and name, as each metric's code expects them."""
        values: Values = [{} for _ in self.targets]
        devices = [target.device for target in self.targets]
        states = self.plan.states if self.plan is not None else {}
        for path, place, spec, value in self.states:
            if (state := states.get(path + spec.piece)) is not None:
                whole = on_device(combined[state.path], devices[place])
                new = _as_before(spec, value, whole, len(state.ranks))
            elif value is not ABSENT:  # no rank has touched it, or this is a world of one
                # Some metrics change their state as they compute.
                whole = value.clone() if isinstance(value, Tensor) else copy.copy(value)
                if spec.merge is not None:
                    whole = [copy.deepcopy(spec.start(value))]
                new = _as_before(spec, value, whole, 1)
            else:
                continue
            values[place].update(new if spec.name == WHOLE else {spec.name: new})
        # Flags and counter come after the state, which may be all attributes.
        for target, new, count in zip(self.targets, values, updates, strict=True):
            new.update(target.adapter.synced_flags)
            if target.adapter.counter:
                new[target.adapter.counter] = count
        return values


def _as_before(spec: StateSpec, local: Any, combined: Any, ranks: int) -> Any:
    """Give the state of so many ranks the type that its metric's code expects."""
    if spec.merge is not None:
        return spec.merge(local, combined)
    if spec.finish is not None and (ranks > 1 or spec.piece):
        return spec.finish(combined)
    if spec.kind != "cat" or isinstance(combined, list) is isinstance(local, list):
        return combined
    return [combined] if isinstance(local, list) else torch.stack(combined)


def on_device(value: Any, device: torch.device) -> Any:
    """Return a tensor, or what lists, tuples and dicts hold, on ``device``; the rest as it is."""
    if isinstance(value, Tensor):
        return value.to(device)
    if type(value) in (list, tuple):
        return type(value)([on_device(item, device) for item in value])
    if type(value) is dict:
        return {key: on_device(item, device) for key, item in value.items()}
    return value


# From local values to what is sent


def describe(
    metrics: MetricSet, name: str, site: Site | None, *, allow_pickle: bool = False
) -> tuple[Header, Sent, dict[str, Tensor]]:
    """Return what this rank sends: the header, where each tensor lies, and the tensors by path.

    What cannot be sent becomes the header's problem, so that every rank raises.
    """
    records: list[MetricRecord] = []
    entries = [StateEntry(UPDATES, "int64", (len(metrics.updates),))]
    tensors = {UPDATES: torch.tensor(metrics.updates, dtype=torch.int64, device="cpu")}
    try:
        shows = _shown(metrics)
        for state in metrics.states:
            is_shown = metrics.targets[state.place].path in shows  # what another metric sends
            # The default state of a metric without an update is no data.
            if state.is_empty or is_shown or not metrics.updates[state.place]:
                continue
            for path, kind, x in _sendable(state, allow_pickle):
                about = x.dtype, x.shape, x.layout, x.is_meta
                entries.append(_entry(path, kind, state.spec.piece, *about))
                tensors[path] = x
        for target, updates in zip(metrics.targets, metrics.updates, strict=True):
            records.append(_record(target, updates > 0, shows.get(target.path, "")))
    except StateError as error:  # no data will be moved then
        metrics.problem = metrics.problem or Problem.of(error)
    sent = tuple(entries)
    header = Header(
        "sync of metrics",
        name,
        site=site,
        problem=metrics.problem,
        allow_pickle=allow_pickle,
        dtensors=tuple(metrics.shared),
        body=encode(SyncSchema(tuple(records), sent)),
        detail=shorten(sent),
    )
    return header, sent_by(sent, inline_capacity(metrics.comm.world_size)), tensors


def _sendable(state: State, allow_pickle: bool) -> list[tuple[str, SentKind, Tensor]]:
    """Return a state as tensors, with paths and kinds; or raise StateError."""
    path, spec, value = state.path + state.spec.piece, state.spec, state.value
    try:
        if spec.kind == "each":
            return [(path, "each", serialize(spec.start(value), allow_pickle=allow_pickle))]
        if isinstance(value, Tensor) and spec.kind not in ("cat", "items"):
            return [(path, spec.kind, value)]
        if isinstance(value, list | Tensor):
            items = parts_of(value)
            dtypes = {item.dtype if isinstance(item, Tensor) else None for item in items}
            if None in dtypes or (len(dtypes) > 1 and spec.kind != "cat"):
                return [(path, "object", serialize(items, allow_pickle=allow_pickle))]
            if spec.kind != "cat":
                joined, sizes = join(items)
                return [(path, "items", joined), (sizes_of(path), "sizes", sizes)]
            rows = torch.cat([item.reshape(1) if item.ndim == 0 else item for item in items])
            # A metric that keeps numbers may count them.
            return [(path, "cat" if any(item.ndim for item in items) else "items", rows)]
    # What pickling and joining a metric's own values may raise.
    except (RuntimeError, TypeError, ValueError, AttributeError, PicklingError) as error:
        what = f"the state {path} cannot be sent: {getattr(error, 'what', error)}"
        raise StateError(what, do=getattr(error, "do", "")) from error
    raise StateError(
        f"the state {path} is a {type(value).__name__}; only tensors and lists can be synced",
        do='keep it as a tensor; an adapter can send anything as "each", with start and merge.',
    )


@functools.lru_cache(maxsize=1024)
def _entry(
    path: str,
    kind: SentKind,
    piece: str,
    dtype: torch.dtype,
    shape: torch.Size,
    layout: torch.layout,
    is_meta: bool,
) -> StateEntry:
    """Describe a tensor; raise StateError if it cannot be sent, or not be reduced in its way."""
    why, do = unsendable(dtype, layout, is_meta)
    if not why:
        try:
            return StateEntry(path, short_name(dtype), tuple(shape), kind=kind, piece=piece)
        except ValueError as error:
            why, do = str(error), "keep it in another dtype."
    raise StateError(f"the state {path} {why}", do=do)


def _record(target: Target, is_updated: bool, shows: str) -> MetricRecord:
    """Return what the other ranks must know of a metric."""
    kind = type(target.metric).__name__
    # Of a state that the library merges itself, the arguments say all that there is to say.
    states = tuple([(x.name, x.kind, tuple(x.shape)) for x in target.states if x.merge is None])
    arguments = tuple(target.adapter.arguments(target.metric).items())
    digest = digest_of(target.adapter.attributes(target.metric))
    return MetricRecord(target.path, kind, states, arguments, digest, is_updated, shows)


def digest_of(attributes: Mapping[str, Any]) -> str:
    """Return a short text that is equal where all attributes are."""
    texts = attributes
    if not PLAIN.issuperset(map(type, attributes.values())):
        texts = {name: described(value).text for name, value in attributes.items()}
    return hashlib.blake2b(repr(texts).encode(), digest_size=8).hexdigest()


def join(items: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Join tensors of one dtype, unbroken: their elements, and the sizes that :func:`cut` needs.

    The lengths of rows that are alike (boxes, scores, labels of an image each), which one operation
    cuts; else ``[dimensions, *shape, 0…]`` of each item.
    """
    shapes = [item.shape for item in items]
    if all(shapes) and len({shape[1:] for shape in shapes}) == 1:
        return torch.cat([*items]), torch.tensor([shape[0] for shape in shapes], device="cpu")
    most = max(map(len, shapes))
    sizes = [[len(shape), *shape, *[0] * (most - len(shape))] for shape in shapes]
    return torch.cat([item.reshape(-1) for item in items]), torch.tensor(sizes, device="cpu")


def cut(elements: Tensor, sizes: Tensor | None) -> list[Tensor]:
    """Return the items that were joined, as views of ``elements``; without sizes its rows."""
    if sizes is None:
        return list(elements.unbind())
    if sizes.ndim == 1:
        return list(elements.split_with_sizes(sizes.tolist()))
    shapes = [row[1 : 1 + row[0]] for row in sizes.tolist()]
    pieces = elements.split_with_sizes([math.prod(shape) for shape in shapes])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _shown(metrics: MetricSet) -> dict[str, str]:
    """Return, by the paths of metrics, those of the metrics whose state they show."""
    places = {id(target.metric): place for place, target in enumerate(metrics.targets)}
    shown = {}
    for target in metrics.targets:
        for group in target.adapter.groups(target.metric):
            first, *others = [places[id(metric)] for metric in group]
            for other in others:
                # Members with other states were updated one by one, and are no group.
                one, two = metrics.targets[first], metrics.targets[other]
                if one.states == two.states and are_equal(metrics.held(first), metrics.held(other)):
                    shown[two.path] = one.path
    # A metric of two collections may be in two groups.
    return {path: first for path, first in shown.items() if first not in shown}


# From the runs of bytes that the ranks sent to the state of all ranks


def combine(
    plan: SyncPlan, runs: Sequence[tuple[Tensor, Tensor]], inline: Tensor, comm: Communicator
) -> dict[str, Any]:
    """Return the combined state for each of the plan's paths: a tensor, or a list of items.

    ``runs``: what every rank has sent, inline and bulk; ``inline``: this rank's reduced states, to
    be reduced here where they do not ride along.
    """
    rows = []
    lists = []
    for rank, (sent, (fixed, bulk)) in enumerate(zip(plan.sent, runs, strict=True)):
        with reading("its states", rank):
            if plan.is_inline:
                rows.append(_aligned(fixed, sent, plan))
            lists.append(sent.bulk.unpack(bulk))
    if not plan.is_inline:
        # Each rank says how large its pieces are, which are states of all.
        check_memory(comm, -(-plan.agreed.layout.nbytes // comm.world_size))
        rows = [_aligned(inline, plan.sent[comm.rank], plan)]
    result: dict[str, Any] = {}
    for bucket in plan.agreed.layout.buckets:  # one operation each, then one view a state
        op, dtype = OPS[bucket.key], bucket.dtype
        wide = [bucket.view(row).to(wide_dtype(dtype)) for row in rows]
        whole = fold(wide, op) if plan.is_inline else reduce_large(comm, wide[0], op)
        if bucket.key != "mean":
            whole = whole.to(dtype)  # of bools the sum is "any", as it is within one process
        for index, part in bucket.split(whole).items():
            path = plan.agreed.paths[index]
            if bucket.key == "mean":
                count = len(plan.states[path].ranks)
                part = part / count if count > 1 else part.to(dtype)
                if dtype.is_floating_point or dtype.is_complex:  # that of integers is no integer
                    part = part.to(dtype)
            result[path] = part
    for path, state in plan.states.items():
        if path == state.path and state.kind not in OPS:
            with reading(f"the lists of {path}"):
                result[path] = _combine_lists(state, lists, plan, comm)
    return result


def _aligned(run: Tensor, sent: Sent, plan: SyncPlan) -> Tensor:
    """Bring one rank's states into the layout of all, with neutral values for what it lacks."""
    if sent.inline == plan.agreed:
        return run
    have = sent.inline.unpack(run)
    tensors = {}
    for path in plan.agreed.paths:
        state = plan.states[path]
        if path in have:
            tensors[path] = have[path].to(state.dtype)
        else:
            tensors[path] = _neutral(state, run.device)
    return plan.agreed.pack(tensors, run.device)


def _neutral(state: StatePlan, device: torch.device) -> Tensor:
    """Return a tensor that changes nothing."""
    value: float = 0
    if state.kind in ("max", "min"):
        ends: Sequence[float] = (-math.inf, math.inf)
        if state.dtype == torch.bool:
            ends = (0, 1)
        elif not state.dtype.is_floating_point:
            ends = (torch.iinfo(state.dtype).min, torch.iinfo(state.dtype).max)
        value = ends[state.kind == "min"]
    return torch.full(state.shape, value, dtype=state.dtype, device=device)


def _combine_lists(
    state: StatePlan, per_rank: Sequence[Mapping[str, Tensor]], plan: SyncPlan, comm: Communicator
) -> Any:
    """Join what is not reduced, in rank order."""
    parts = [per_rank[r][state.path] for r in state.ranks]
    if state.kind in ("each", "object"):
        values = [
            deserialize(part, allow_pickle=plan.allow_pickle, accelerator=comm.device)
            for part in parts
        ]
        return values if state.kind == "each" else list(chain.from_iterable(values))
    parts = [part.to(state.dtype) for part in parts]
    if state.kind == "stack":  # of which one rank's state needs none
        return torch.stack(parts) if len(parts) > 1 else parts[0]
    if state.kind == "cat":
        return torch.cat(parts)
    sizes = [per_rank[r].get(sizes_of(state.path)) for r in state.ranks]
    return list(chain.from_iterable(map(cut, parts, sizes)))
