"""The metrics of one sync: their states, read and put back together; and who syncs them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor

from distmetrics.collectives.dtensor import Shared
from distmetrics.collectives.message import is_raised_by_user
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import ConfigurationError, StateError
from distmetrics.metrics.adapters.base import StateSpec, Target
from distmetrics.metrics.comparison import digest_of
from distmetrics.metrics.compute_groups import UNDECIDED
from distmetrics.metrics.schema import UPDATES, MetricRecord

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
            values = map(_are_equal, mine.values(), map(theirs.get, mine))
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


def _are_equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.shape != other.shape:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())  # NaN is NaN here


def _record(target: Target, updates: int, shared: tuple[Shared, ...], first: int) -> MetricRecord:
    kind = type(target.metric).__name__
    label = f"{target.path}: {kind}" if target.path else kind
    # Of a state that the library merges itself, the arguments say all that there is to say.
    states = tuple([(x.name, x.kind, tuple(x.shape)) for x in target.states if x.merge is None])
    attributes = target.adapter.attributes(target.metric)
    arguments = target.adapter.arguments_among(attributes, target.metric)
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
    from distmetrics.comm.process_group import GroupCommunicator

    own: Communicator | None = getattr(group, "communicator", None)
    if own is not None:  # of the kit's groups, whose ranks are threads
        return own
    is_mesh = hasattr(group, "get_group")
    if dist.is_available() and (isinstance(group, dist.ProcessGroup) or is_mesh):
        return GroupCommunicator.of(group)
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
