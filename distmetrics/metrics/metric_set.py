"""The metrics of one sync: read, turned into tensors that can be sent, combined and put back."""

from __future__ import annotations

import copy
import functools
import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pickle import PicklingError
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.buckets import Bucket, short_name, unsendable
from distmetrics.collectives.dtensor import Shared
from distmetrics.collectives.header import Header, Problem, shorten
from distmetrics.collectives.ops import reduce_large, wide_dtype
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.communicator import Communicator, Op, fold
from distmetrics.errors import Site, StateError
from distmetrics.message import encode, reading
from distmetrics.metrics.adapters.base import WHOLE, StateSpec, Target, are_equal, parts_of
from distmetrics.metrics.attributes import PLAIN, described
from distmetrics.metrics.plan import (
    REDUCED,
    UPDATES,
    MetricRecord,
    Sent,
    SentKind,
    StateEntry,
    StatePlan,
    SyncPlan,
    SyncSchema,
    is_reducible,
    sent_by,
    sizes_of,
)
from distmetrics.metrics.ragged import cut, join

ABSENT = object()  # read in place of an attribute that is not in a metric's storage
OPS: dict[str, Op] = {"max": "max", "min": "min"}
Values = list[dict[str, Any]]  # for each metric, values by the names in its storage
# What pickling and joining a metric's own values may raise: the metric's fault, to be told to all
# ranks.
_UNSENDABLE = (RuntimeError, TypeError, ValueError, AttributeError, PicklingError)


class MetricSet:
    """Metrics that are synced together, in an order that all ranks share."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = targets
        self.problem: Problem | None = None  # why they cannot be synced: all ranks must hear of it
        self.plan: SyncPlan | None = None
        self.before: Values = [dict(target.storage) for target in targets]
        self.shared: list[Shared] = []  # states that are DTensors
        self.updates: list[int] = []  # most metrics say it in their storage
        # Path, metric's place, description and local value of every state.
        self.states: list[tuple[str, int, StateSpec, Any]] = []
        for place, (target, storage) in enumerate(zip(targets, self.before, strict=True)):
            count = storage.get(target.adapter.counter)
            self.updates.append(count or target.adapter.updates(target.metric))
            for spec in target.states:
                path = f"{target.path}.{spec.name}" if target.path else spec.name
                value = storage if spec.name == WHOLE else storage.get(spec.name, ABSENT)
                self.states.append((path, place, spec, value))

    @property
    def order(self) -> tuple[str, ...]:
        """Return the paths of all states, that of the update counts first."""
        return (UPDATES, *[path for path, _, _, _ in self.states])

    @contextmanager
    def holding(self, values: Values) -> Iterator[None]:
        """Hold other values inside the block; the local state is put back whatever happens.

        Everything was read before the first change, so an interrupt at any point loses nothing.
        """
        try:
            for target, new in zip(self.targets, values, strict=True):
                target.storage.update(new)
            yield
        finally:
            try:
                self._put_back(values)
            except BaseException:  # a handler of a signal may raise half-way
                self._put_back(values)
                raise

    def _put_back(self, written: Values) -> None:
        """Put back what ``written`` has replaced, and undo all that an update changed meanwhile."""
        for target, before, new in zip(self.targets, self.before, written, strict=True):
            counter = target.adapter.counter
            names: Collection[str] = new
            if not counter or target.storage.get(counter) != new[counter]:
                names = {*target.storage, *before}
            for name in names:
                if name in before:
                    target.storage[name] = before[name]
                else:
                    target.storage.pop(name, None)

    def reset_meanwhile(self) -> list[Any]:
        """Return the metrics that were reset while they held the state of all ranks."""
        return [each.metric for each in self.targets if each.adapter.flag and not each.is_synced]

    def placed(self, combined: Mapping[str, Any], updates: Sequence[int]) -> Values:
        """Return the combined states by metric and name, as each metric's code expects them."""
        values: Values = [{} for _ in self.targets]
        devices = [target.device for target in self.targets]
        for path, place, spec, value in self.states:
            if self.plan is not None and path in self.plan.states:
                state = self.plan.states[path]
                whole = on_device(combined[state.path], devices[place])
                new = _as_before(spec, value, whole, len(state.ranks))
            elif value is not ABSENT:  # no rank has touched it, or this is a world of one
                new = _copied(spec, value)
            else:
                continue
            values[place].update(new if spec.name == WHOLE else {spec.name: new})
        # Flags and counter come after the state, which may be all attributes.
        for target, new, count in zip(self.targets, values, updates, strict=True):
            new.update(target.adapter.synced_flags)
            if target.adapter.counter:
                new[target.adapter.counter] = count
        return values


def _copied(spec: StateSpec, value: Any) -> Any:
    """Copy a local state that computing will see: some metrics change theirs as they compute."""
    if spec.merge is not None:
        return spec.merge(value, [copy.deepcopy(spec.start(value))])
    if isinstance(value, list):
        return list(value)
    return value.clone() if isinstance(value, Tensor) else value


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
        return value if value.device == device else value.to(device)
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

    A metric that was never updated here sends no state: its default state is not data, and must be
    neither averaged nor counted in. What cannot be sent becomes the header's problem, so that
    every rank raises.
    """
    records: tuple[MetricRecord, ...] = ()
    entries: list[StateEntry] = []
    tensors: dict[str, Tensor] = {}

    def add(path: str, tensor: Tensor, kind: SentKind, piece: str = "") -> None:
        about = tensor.dtype, tensor.shape, tensor.layout, tensor.is_meta
        entries.append(_entry(path, kind, piece, *about))
        tensors[path] = tensor

    add(UPDATES, torch.tensor(metrics.updates, device="cpu"), "sum")
    try:
        shows = _shown(metrics)
        for path, place, spec, value in metrics.states:
            is_empty = value is ABSENT or (isinstance(value, list) and not value)
            is_shown = metrics.targets[place].path in shows  # what another metric sends
            if is_empty or is_shown or not metrics.updates[place]:
                continue
            tensor, kind, sizes = _sendable(value, spec, path, allow_pickle)
            add(path, tensor, kind, spec.piece)
            if sizes is not None:
                add(sizes_of(path), sizes, "sizes")
        records = _records(metrics, shows)
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
        body=encode(SyncSchema(records, sent)),
        detail=shorten(sent),
    )
    return header, sent_by(sent), tensors


def _sendable(
    value: Any, spec: StateSpec, path: str, allow_pickle: bool
) -> tuple[Tensor, SentKind, Tensor | None]:
    """Return a state as one tensor, its kind, and the sizes of its items; or raise StateError."""
    try:
        if spec.kind == "each":
            return serialize(spec.start(value), allow_pickle=allow_pickle), "each", None
        if isinstance(value, Tensor) and spec.kind != "items":
            rows = value.reshape(1) if spec.kind == "cat" and value.ndim == 0 else value
            return rows, spec.kind, None
        if isinstance(value, list | Tensor):
            items = parts_of(value)
            if not all(isinstance(item, Tensor) for item in items):
                return serialize(items, allow_pickle=allow_pickle), "object", None
            if spec.kind == "cat":
                rows = torch.cat([item.reshape(1) if item.ndim == 0 else item for item in items])
                # A metric that keeps numbers may count them.
                return rows, "cat" if any(item.ndim for item in items) else "items", None
            if len({item.dtype for item in items}) == 1:
                joined, sizes = join(items)
                return joined, "items", sizes
            raise StateError(f"the items of the list state {path} have more than one dtype")
    except _UNSENDABLE as error:
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
    if not why and not is_reducible(kind, dtype):
        why = f"is {short_name(dtype)}, of which torch has no {kind}"
        do = "keep it in another dtype."
    if why:
        raise StateError(f"the state {path} {why}", do=do)
    return StateEntry(path, short_name(dtype), tuple(shape), kind=kind, piece=piece)


def _records(metrics: MetricSet, shows: Mapping[str, str]) -> tuple[MetricRecord, ...]:
    """Return what the other ranks must know of each metric."""
    records = []
    for target, updates in zip(metrics.targets, metrics.updates, strict=True):
        kind = type(target.metric).__name__
        label = f"{target.path}: {kind}" if target.path else kind
        # Of a state that the library merges itself, the arguments say all that there is to say.
        states = tuple([(x.name, x.kind, tuple(x.shape)) for x in target.states if x.merge is None])
        attributes = target.adapter.attributes(target.metric)
        arguments = target.adapter.arguments(target.metric)
        try:
            digest = digest_of(attributes)
        except _UNSENDABLE as error:  # of a number of thousands of digits, say
            raise StateError(f"{label} cannot be described to the other ranks: {error}") from error
        about = label, states, tuple(arguments.items()), digest, updates > 0
        records.append(MetricRecord(*about, shows.get(target.path, "")))
    return tuple(records)


def digest_of(attributes: Mapping[str, Any]) -> str:
    """Return a short text that is equal where all attributes are."""
    texts = attributes
    if not PLAIN.issuperset(map(type, attributes.values())):
        texts = {name: described(value).text for name, value in attributes.items()}
    return hashlib.blake2b(repr(texts).encode(), digest_size=8).hexdigest()


def _shown(metrics: MetricSet) -> dict[str, str]:
    """Return, by the paths of metrics, those of the metrics whose state they show.

    Members of a group that hold different states, as someone has updated them one by one, are no
    group.
    """
    places = {id(target.metric): place for place, target in enumerate(metrics.targets)}
    held: list[list[Any]] = [[] for _ in metrics.targets]
    for _, place, _, value in metrics.states:
        held[place].append(value)
    shown = {}
    for target in metrics.targets:
        for group in target.adapter.groups(target.metric):
            first, *others = [places[id(metric)] for metric in group]
            one = metrics.targets[first]
            for place in others:
                other = metrics.targets[place]
                if one.states == other.states and are_equal(held[first], held[place]):
                    shown[other.path] = one.path
    # A metric of two collections may be in two groups.
    return {path: first for path, first in shown.items() if first not in shown}


# From the runs of bytes that the ranks sent to the state of all ranks


def combine(
    plan: SyncPlan, runs: Sequence[tuple[Tensor, Tensor]], inline: Tensor, comm: Communicator
) -> dict[str, Any]:
    """Return the combined state for each of the plan's paths.

    A tensor; a list for "items" and "object"; for "each" a list of what the ranks sent. ``runs``
    is what every rank has sent, inline and bulk; ``inline`` are this rank's reduced states, to be
    reduced here where they do not ride along.
    """
    rows = []
    lists = []
    for rank, (sent, (fixed, bulk)) in enumerate(zip(plan.sent, runs, strict=True)):
        with reading("its states", rank):
            if plan.is_inline:
                rows.append(_aligned(fixed, sent, plan))
            lists.append(sent.bulk.unpack(bulk))
    if not plan.is_inline:
        rows = [_aligned(inline, plan.sent[comm.rank], plan)]
    result = _combine_fixed(rows, plan, comm)
    for path, state in plan.states.items():
        if path == state.path and state.kind not in REDUCED:
            with reading(f"the lists of {state.path}"):
                result[state.path] = _combine_lists(state, lists, plan, comm)
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


def _combine_fixed(rows: Sequence[Tensor], plan: SyncPlan, comm: Communicator) -> dict[str, Any]:
    """Fold the reduced states: one operation a bucket, then one view a state."""
    result: dict[str, Any] = {}
    for bucket in plan.agreed.layout.buckets:
        whole = _fold([bucket.view(row) for row in rows], bucket, plan.is_inline, comm)
        for index, part in bucket.split(whole).items():
            path = plan.agreed.paths[index]
            if bucket.key == "mean":
                part = _mean(part, len(plan.states[path].ranks), bucket.dtype)
            result[path] = part
    return result


def _mean(total: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    mean = total / count if count > 1 else total.to(dtype)
    # The mean of integers is no integer.
    return mean.to(dtype) if dtype.is_floating_point or dtype.is_complex else mean


def _fold(views: Sequence[Tensor], bucket: Bucket, is_inline: bool, comm: Communicator) -> Tensor:
    """Reduce a bucket, wide; a mean is left as the sum that is to be divided.

    The sum of bools is "any", as it is within one process.
    """
    op: Op = OPS.get(bucket.key, "sum")
    wide = [view.to(wide_dtype(bucket.dtype)) for view in views]
    whole = fold(wide, op) if is_inline else reduce_large(comm, wide[0], op)
    return whole if bucket.key == "mean" else whole.to(bucket.dtype)


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
