"""The metrics of one sync, read, described and put back together; and who syncs them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pickle import PicklingError
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics.collectives.buckets import short_name, unsendable
from distmetrics.collectives.dtensor import Shared
from distmetrics.collectives.header import Header, Problem, shorten
from distmetrics.collectives.wire import serialize
from distmetrics.comm.communicator import Communicator
from distmetrics.comm.process_group import of_group
from distmetrics.errors import ConfigurationError, InputTypeError, Site, StateError
from distmetrics.message import encode, is_raised_by_user
from distmetrics.metrics.adapters.base import Kind, Piece, StateSpec, Target
from distmetrics.metrics.plan import Sent, sent_by, sizes_of
from distmetrics.metrics.ragged import Form, join
from distmetrics.metrics.schema import (
    UNDECIDED,
    UPDATES,
    MetricRecord,
    StateEntry,
    SyncSchema,
    are_equal,
    digest_of,
    is_reducible,
)

ABSENT = object()  # read in place of an attribute that is not in a metric's storage
Values = list[dict[str, Any]]  # for each metric, values by the names in its storage


class MetricSet:
    """Metrics that are synced together, in an order that all ranks share.

    Attributes:
        targets: the metrics.
        before: what each metric's storage held when this was made.
        updates: how often each metric was updated here.
        states: path, metric's place, description and local value of every state.
        shared: for each metric, what the other ranks must know of states that are DTensors.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = targets
        self.before: Values = [dict(target.storage) for target in targets]
        self.shared: list[tuple[Shared, ...]] = [() for _ in targets]
        self.updates: list[int] = []  # most metrics say it in their storage
        for target, storage in zip(targets, self.before, strict=True):
            count = storage.get(target.adapter.counter)
            self.updates.append(count or target.adapter.updates(target.metric))
        self.states: list[tuple[str, int, StateSpec, Any]] = []
        for place, (target, storage) in enumerate(zip(targets, self.before, strict=True)):
            for spec in target.states:
                path = f"{target.path}.{spec.name}" if target.path else spec.name
                self.states.append((path, place, spec, storage.get(spec.name, ABSENT)))

    @property
    def order(self) -> tuple[str, ...]:
        """Return the paths of all states, that of the update counts first."""
        return (UPDATES, *[path for path, _, _, _ in self.states])

    def records(self) -> tuple[MetricRecord, ...]:
        """Return what the other ranks must know of each metric."""
        return tuple(map(_record, self.targets, self.updates, self.shared, self.firsts()))

    def firsts(self) -> list[int]:
        """Return for each metric the place of the one whose state it shows, UNDECIDED if unknown.

        Members of a group that hold different states, as someone has updated them one by one, are
        no group.
        """
        places = {id(target.metric): place for place, target in enumerate(self.targets)}
        firsts = [UNDECIDED] * len(self.targets)
        pairs = []
        for target in self.targets:
            for group in target.adapter.groups(target.metric):
                first, *others = [places[id(metric)] for metric in group]
                firsts[first] = first
                pairs += [(first, other) for other in others]
        for (first, other), is_equal in zip(pairs, self.are_equal(pairs), strict=True):
            firsts[other] = first if is_equal else other
        return firsts

    def are_equal(self, pairs: Sequence[tuple[int, int]]) -> list[bool]:
        """Return for each pair of places whether the two metrics hold the same state here.

        Those that were never updated do.
        """
        held: Values = [{} for _ in self.targets]
        for _, place, spec, value in self.states:
            held[place][spec.name] = value
        equal = []
        for one, two in pairs:
            mine, theirs = held[one], held[two]
            values = map(are_equal, mine.values(), map(theirs.get, mine))
            same = mine.keys() == theirs.keys() and all(values)
            equal.append(same or not (self.updates[one] or self.updates[two]))
        return equal

    def write(self, values: Values) -> None:
        """Put values into the metrics."""
        for target, new in zip(self.targets, values, strict=True):
            target.storage.update(new)

    @contextmanager
    def holding(self, values: Values) -> Iterator[None]:
        """Hold other values inside the block; the local state is put back whatever happens.

        Everything was read before the first change, so an interrupt at any point loses nothing.
        """
        try:
            self.write(values)
            yield
        finally:
            try:
                self.put_back(values)
            except BaseException:  # a handler of a signal may raise half-way
                self.put_back(values)
                raise

    def reset_meanwhile(self) -> list[Any]:
        """Return the metrics that were reset while they held the state of all ranks."""
        return [each.metric for each in self.targets if each.adapter.flag and not each.is_synced]

    def add_flags(self, values: Values, updates: Sequence[int]) -> None:
        """Add each metric's flags and counter: after its state, which may be all attributes."""
        for target, new, count in zip(self.targets, values, updates, strict=True):
            new.update(target.adapter.synced_flags)
            if target.adapter.counter:
                new[target.adapter.counter] = count

    def put_back(self, written: Values) -> None:
        """Put back what was in the metrics under the names of ``written``.

        Where a metric was updated meanwhile, all that the update changed is undone.
        """
        for target, before, new in zip(self.targets, self.before, written, strict=True):
            counter = target.adapter.counter
            names: Collection[str] = new
            if counter and target.storage.get(counter) != new[counter]:
                names = {*target.storage, *before}
            for name in names:
                if name in before:
                    target.storage[name] = before[name]
                else:
                    target.storage.pop(name, None)


def _record(target: Target, updates: int, shared: tuple[Shared, ...], first: int) -> MetricRecord:
    kind = type(target.metric).__name__
    label = f"{target.path}: {kind}" if target.path else kind
    # Of a state that the library merges itself, the arguments say all that there is to say.
    states = tuple([(x.name, x.kind, tuple(x.shape)) for x in target.states if x.merge is None])
    attributes = target.adapter.attributes(target.metric)
    arguments = target.adapter.arguments(target.metric)
    others = {name: value for name, value in attributes.items() if name not in arguments}
    try:
        digest = digest_of(others)
    except Exception as error:  # any class may raise anything where it is looked at
        if is_raised_by_user(error):  # by the handler of a signal
            raise
        raise StateError(f"{label} cannot be described to the other ranks: {error}") from error
    return MetricRecord(label, states, tuple(arguments.items()), digest, updates > 0, shared, first)


def communicator_of(targets: Sequence[Target], default: Communicator) -> Communicator:
    """Return the communicator for metrics whose user has not passed one.

    A metric that was made with a process group of its own (``process_group=`` of torchmetrics) is
    synced in that group. Metrics without states, such as wrappers, are synced with those that they
    hold.

    Raises:
        ConfigurationError: the group is none, or this rank is not in it: no other rank waits for
            it.
        StateError: the metrics of one sync were made for different groups.
    """
    comms: dict[str, Communicator] = {}
    for target in targets:
        if target.states:
            group = target.storage.get(target.adapter.group)
            comms[target.path] = default if group is None else _communicator(group, target.path)
    if not comms:
        return default
    first, comm = next(iter(comms.items()))
    other = next((path for path, theirs in comms.items() if theirs is not comm), None)
    if other is not None:
        raise StateError(
            f"the metrics {first} and {other} were made for different process groups, and one "
            "sync talks in one",
            do="sync the metrics of each group in a call of their own, or pass comm=, which "
            "overrules process_group.",
        )
    return comm


def _communicator(group: Any, path: str) -> Communicator:
    own: Communicator | None = getattr(group, "communicator", None)
    if own is not None:  # of the kit's groups, whose ranks are threads
        return own
    if (found := of_group(group)) is not None:
        return found
    what = f"the metric {path}" if path else "the metric"
    if dist.is_available() and group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ConfigurationError(
            f"{what} was made for a process group that this rank is not in",
            do="sync it on the ranks of its group alone, or pass comm=, which overrules "
            "process_group.",
        )
    raise ConfigurationError(
        f"{what} was made with process_group={group!r}, which is no torch.distributed process "
        "group",
        do="pass what torch.distributed.new_group returned, or pass comm=, which overrules "
        "process_group.",
    )


# What pickling and joining a metric's own values may raise: the metric's fault, to be told to all
# ranks.
_UNSENDABLE = (RuntimeError, TypeError, ValueError, AttributeError, PicklingError)


class Outgoing(NamedTuple):
    """What this rank sends: the header, where each tensor lies, and the tensors by path."""

    header: Header
    sent: Sent
    tensors: dict[str, Tensor]

    def prove(self, comm: Communicator) -> None:
        """Tell a layout what this rank would send."""
        if comm.wants_proof:
            comm.witness(self.header.content(), self.tensors)


class _Described:
    """The entries of a schema, with their tensors.

    Args:
        serialized: makes a tensor of what is not one.
    """

    def __init__(self, serialized: Callable[[Any], Tensor]) -> None:
        self._serialized = serialized
        self.entries: list[StateEntry] = []
        self.tensors: dict[str, Tensor] = {}
        self._shared: dict[tuple[int, str], StateEntry] = {}

    def add(self, path: str, spec: StateSpec, value: Any) -> None:
        """Describe one state; an object that several states of one kind share is sent once.

        Raises:
            StateError: it cannot be sent.
        """
        key = id(value), spec.kind
        shared = self._shared.get(key)
        if shared is not None:
            self.entries.append(shared.but(path=path, same_as=shared.path))
            return
        tensor, kind, form, sizes = _sendable(value, spec, path, self._serialized)
        self._shared[key] = self.add_tensor(path, tensor, kind, form, spec.piece)
        if sizes is not None:
            self.add_tensor(sizes_of(path), sizes, "sizes")

    def add_tensor(
        self,
        path: str,
        tensor: Tensor,
        kind: Kind | Literal["sizes"],
        form: Form | None = None,
        piece: Piece | None = None,
    ) -> StateEntry:
        """Describe one tensor.

        Raises:
            StateError: it cannot be sent.
        """
        about = tensor.dtype, tensor.shape, tensor.layout, tensor.is_meta
        entry = _entry(path, kind, form, piece, *about)
        self.entries.append(entry)
        self.tensors[path] = tensor
        return entry


def describe(
    metrics: MetricSet,
    name: str,
    site: Site | None,
    problem: Problem | None = None,
    *,
    allow_pickle: bool = False,
) -> Outgoing:
    """Turn local values into what is sent.

    A metric that was never updated here sends no state: its default state is not data, and must be
    neither averaged nor counted in. What cannot be sent becomes the header's problem, so that
    every rank raises.

    Args:
        metrics: with their local values.
        name: the user's name of the call.
        site: the user's line.
        problem: one that the caller has found already.
        allow_pickle: send objects of any class.
    """
    described = _Described(partial(serialize, allow_pickle=allow_pickle))
    records: tuple[MetricRecord, ...] = ()
    described.add_tensor(UPDATES, torch.tensor(metrics.updates, device="cpu"), "sum")
    try:
        for path, place, spec, value in metrics.states:
            is_empty = value is ABSENT or (isinstance(value, list) and not value)
            if metrics.updates[place] and not is_empty:
                described.add(path, spec, value)
        records = metrics.records()
    except StateError as error:  # no data will be moved then
        problem = problem or Problem.of(error)
    entries = tuple(described.entries)
    header = Header(
        "sync of metrics",
        name,
        site=site,
        problem=problem,
        allow_pickle=allow_pickle,
        body=encode(SyncSchema(records, entries)),
        detail=shorten(entries),
    )
    return Outgoing(header, sent_by(entries), described.tensors)


_Sendable = tuple[Tensor, Kind, Form | None, Tensor | None]


def _sendable(
    value: Any, spec: StateSpec, path: str, serialized: Callable[[Any], Tensor]
) -> _Sendable:
    """Return a state as one tensor, its kind, the form of its items, and their sizes.

    Raises:
        StateError: there is no such tensor.
    """
    try:
        if spec.kind == "each":
            sent = value if spec.start is None else spec.start(value)
            return serialized(sent), "each", None, None
        if spec.kind == "piece" or (isinstance(value, Tensor) and spec.kind != "items"):
            rows = value.reshape(1) if spec.kind == "cat" and value.ndim == 0 else value
            return rows, spec.kind, None, None
        if isinstance(value, list | Tensor):
            items = value if isinstance(value, list) else [value]
            if all(isinstance(item, Tensor) for item in items):
                return _joined(items, spec.kind, path)
            return serialized(items), "object", None, None
    except InputTypeError as error:
        what = f"the state {path} cannot be sent: {error.what}"
        raise StateError(what, do=error.do) from error
    except _UNSENDABLE as error:
        raise StateError(f"the state {path} cannot be sent: {error}") from error
    what = f"is a {type(value).__name__}; only tensors and lists can be synced"
    raise StateError(f"the state {path} {what}")


def _joined(items: list[Tensor], kind: Kind, path: str) -> _Sendable:
    """Return the items of a list of tensors as one tensor, as :func:`_sendable` does."""
    if kind == "cat" and all(item.ndim == 0 for item in items):
        return torch.stack(items), "cat", Form("numbers"), None  # as one process would hold them
    if kind == "cat":
        rows = torch.cat([item.reshape(1) if item.ndim == 0 else item for item in items])
        return rows, "cat", None, None
    if len({item.dtype for item in items}) > 1:
        raise StateError(f"the items of the list state {path} have more than one dtype")
    joined, form, sizes = join(items)
    return joined, "items", form, sizes


@functools.lru_cache(maxsize=1024)
def _entry(
    path: str,
    kind: Kind | Literal["sizes"],
    form: Form | None,
    piece: Piece | None,
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
    same_as = ""
    return StateEntry(path, short_name(dtype), tuple(shape), "", kind, form, same_as, piece)
