"""Make metrics see the data of all ranks: for the length of a block, or for one computation.

Read local state → manifest → plan → execute → put the global state in → compute → put the local
state back, whatever happened. One collective for all sum, mean, max and min states together, two
where there are lists.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from distmetrics.comm.base import Communicator, call_site
from distmetrics.comm.current import chosen
from distmetrics.errors import StateError
from distmetrics.state.adapters import compute, targets
from distmetrics.state.adapters.base import Roster, Target
from distmetrics.state.describe import Outgoing, describe
from distmetrics.state.execute import execute
from distmetrics.state.freeze import thaw
from distmetrics.state.group import communicator_of
from distmetrics.state.items import Owned
from distmetrics.state.learned import Lesson, attach, own, receive
from distmetrics.state.plan import UPDATES, SyncPlan
from distmetrics.state.spec import StateSpec
from distmetrics.state.structure import Structure, structure_of

_ABSENT = object()
_in_sync: set[int] = set()  # identities of the metrics that some thread is syncing
_lock = threading.Lock()
_SHARED = (
    "a metric in this {} is being synced already: another rank, a thread of this process, has "
    "the same object, or the "
    "call is inside of a block of synced(…)\n"
    "Do:     make the metrics in the function that every rank runs, or copy.deepcopy them there; "
    "in the block call "
    "compute() alone."
)


def sync_and_compute(metrics: Any, *, comm: Communicator | None = None, name: str = "") -> Any:
    """Compute metrics over the data of all ranks, as one process that saw it all would have.

    All metrics are synced together, in one or two collectives, however many they are. Local state
    is as before afterwards, also when computing raises; only a metric that resets itself as it
    computes is reset.

    Args:
        metrics: a metric of torchmetrics, torcheval or :func:`~distmetrics.from_function`, a
            ``MetricCollection``, or a mapping, sequence or module that holds such.
        comm: default the process group that the metrics were made for (``process_group=``), else
            the communicator in force. Metrics of different groups need a call for each group.
        name: shown in errors.

    Returns: the metric's value; for a mapping the same keys with values, for a sequence a list, for
        another module a dict from the metric's path to its value. The same on every rank.

    Raises:
        MismatchError: the metrics differ between ranks (on every rank, before data moves).
        StateError: a state can't be sent, ``metrics`` holds none, or its metrics were made for
            different process groups (on every rank).
        ConfigurationError: a metric was made for a process group that this rank is not in (on this
            rank).

    >>> from torchmetrics import MeanMetric
    >>> def score(comm):
    ...     metric = MeanMetric()
    ...     metric.update(torch.arange(1 + 2 * comm.rank))
    ...     return sync_and_compute(metric, comm=comm)
    >>> run(2, score)
    [tensor(0.7500), tensor(0.7500)]
    """
    with synced(metrics, comm=comm, name=name):
        return compute(metrics)


@contextmanager
def synced(
    metrics: Any, *, comm: Communicator | None = None, name: str = ""
) -> Iterator[SyncPlan | None]:
    """Put the state of all ranks into the metrics for the length of the block; afterwards local
    state is back.

    Inside, ``metric.compute()`` does not sync again. What ``metric.update()`` adds there is lost
    with the state of all ranks; ``metric(…)`` is refused by torchmetrics. A metric that is reset
    inside is reset afterwards, unless the block ends in an exception.

    Args:
        metrics: as for :func:`sync_and_compute`.
        comm: as for :func:`sync_and_compute`.
        name: shown in errors.

    Yields: the plan that was carried out (``print(plan.describe())``), or None in a world of one.

    Raises: as :func:`sync_and_compute`.
    """
    found, comm, problem = _found(metrics, comm)
    shape = structure_of(found)
    before = shape.read(found)
    taken = _identities(found)
    is_synced = any(shape.flags(before))
    reset: list[Any] = []
    with _lock:
        is_shared = not _in_sync.isdisjoint(taken)
        _in_sync.update(taken)
    try:
        if is_shared and not is_synced:
            problem = problem or _SHARED.format(type(metrics).__name__)
        with torch.no_grad():
            plan, after, own = _gather(
                found, shape, before, comm, name, type(metrics).__name__, problem
            )
        try:  # everything is read before the first change: an interrupt at any point loses nothing
            shape.write(found, after)
            yield plan
            reset = [
                target.metric
                for target in found
                if target.adapter.flag and not target.home[target.adapter.flag]
            ]
        finally:
            shape.write(found, before)
            for owned in own:
                owned.put_back()
    finally:
        with _lock:
            _in_sync.difference_update(taken)
    for metric in reset:  # as it would be in one process; what a wrapper's compute resets as well
        metric.reset()


def _found(
    metrics: Any, given: Communicator | None
) -> tuple[Sequence[Target], Communicator, str | None]:
    """Return the metrics, and who talks; or none, and why not: other ranks, if there are any, must
    hear of it.
    """
    comm = chosen(given)
    try:
        found = targets(metrics)
        return found, communicator_of(found, comm) if given is None else comm, None
    except StateError as error:
        if comm.world_size == 1:
            raise
        return [], comm, str(error)


def _identities(found: Sequence[Target]) -> frozenset[int]:
    """Return which objects the metrics are; a roster's are the same each time."""
    kept = found.kept if isinstance(found, Roster) else {}
    if "identities" not in kept:
        kept["identities"] = frozenset([id(target.metric) for target in found])
    identities: frozenset[int] = kept["identities"]
    return identities


def _gather(
    found: Sequence[Target],
    shape: Structure,
    before: Sequence[Any],
    comm: Communicator,
    name: str,
    given: str,
    problem: str | None,
) -> tuple[SyncPlan | None, tuple[Any, ...], Iterable[Owned]]:
    """Return the plan, all values as they are while the state of all ranks is in, and local items
    that are in them.
    """
    values = shape.states(before)
    updates = _updates(found, shape, before)
    if comm.world_size == 1:
        _refuse(found, shape, before, given)
        lessons = map(own, shape.lessons(before))
        return (
            None,
            shape.arrange((*map(_own, shape.specs, values), *shape.marks, *updates, *lessons)),
            (),
        )
    try:
        _refuse(found, shape, before, given)
    except StateError as error:  # told to all ranks, in the round that they are waiting in
        problem = problem or str(error)
    outgoing = describe(shape, values, updates, name, call_site(), problem)
    plan, result, learned = _carry_out(
        comm, outgoing, shape, _lessons(found, shape, before, updates)
    )
    states: list[Any] = [_ABSENT] * len(shape.specs)
    places: Sequence[int] = range(len(shape.specs))
    if (
        plan.complete and outgoing.device == comm.device
    ):  # most syncs: what was folded is where it belongs
        states, places = [result[path] for path in shape.order[1:]], shape.unfolded
    for place in places:
        device = found[shape.counted[shape.owners[place]]].device
        states[place] = _as_before(
            shape.specs[place], shape.order[place + 1], values[place], device, plan, result
        )
    return (
        plan,
        shape.arrange((*states, *shape.marks, *result[UPDATES].tolist(), *learned)),
        outgoing.own.values(),
    )


def _carry_out(
    comm: Communicator, outgoing: Outgoing, shape: Structure, lessons: Sequence[Lesson]
) -> tuple[SyncPlan, dict[str, Any], Sequence[Any]]:
    """Return the plan, the combined states by path, and what was learned on any rank."""
    if not lessons:  # most metrics
        plan, result = execute(comm, outgoing, shape.order)
        return plan, result, ()
    manifest, large = attach(outgoing.manifest, lessons)
    plan, result = execute(comm, outgoing._replace(manifest=manifest), shape.order)
    return plan, result, receive(comm, manifest, plan.learned, lessons, large)


def _lessons(
    found: Sequence[Target], shape: Structure, before: Sequence[Any], updates: Sequence[int]
) -> list[Lesson]:
    """Return the attributes that updating sets and that are no states; most metrics have none."""
    if not shape.learned:
        return []
    return [
        Lesson(path, attribute, value, found[shape.counted[owner]].device, bool(updates[owner]))
        for (path, owner, attribute), value in zip(
            shape.learned, shape.lessons(before), strict=True
        )
    ]


def _updates(found: Sequence[Target], shape: Structure, before: Sequence[Any]) -> Sequence[int]:
    """Return how often each metric was updated; most say so in their mapping, the others are asked."""
    counts = shape.counts(before)
    if len(counts) == len(shape.counted) and all(counts):
        return counts
    asked = [found[index] for index in shape.counted]
    return [target.adapter.updates(target.metric) for target in asked]


def _refuse(found: Sequence[Target], shape: Structure, before: Sequence[Any], given: str) -> None:
    """Raise for what cannot be synced, whatever the other ranks have."""
    if not found:
        raise StateError(
            f"a {given} holds no metric that distmetrics knows",
            do="pass a metric of torchmetrics, torcheval or from_function, or a mapping, "
            "sequence or module of some; "
            "register_adapter makes other metrics known.",
        )
    if any(shape.flags(before)):
        target = next(target for target in found if target.home.get(target.adapter.flag))
        raise StateError(
            f"the metric {target.path or type(target.metric).__name__} holds the state of all "
            "ranks already",
            do="inside a block of synced(…) call compute() alone; a second sync would count "
            "every rank again.",
        )


def _own(spec: StateSpec, value: Any) -> Any:
    """Return the state of all ranks in a world of one."""
    if spec.merge is None:
        return _copy(value)
    return spec.merge(value, [copy.deepcopy(value if spec.start is None else spec.start(value))])


def _copy(value: Any) -> Any:
    """Copy a local state that computing will see: some metrics change or clear theirs while they
    compute.
    """
    return (
        list(value)
        if isinstance(value, list)
        else value.clone()
        if isinstance(value, Tensor)
        else value
    )


def _as_before(
    spec: StateSpec,
    path: str,
    local: Any,
    device: torch.device,
    plan: SyncPlan,
    result: Mapping[str, Any],
) -> Any:
    """Give a combined state the type and the device that its metric's code expects."""
    state = result.get(path, _ABSENT)
    if state is _ABSENT:
        return _copy(local)  # no rank has touched it
    if isinstance(state, list):
        # Items that were cut from one tensor are all where that is; what was pickled may be
        # anywhere.
        some = state if plan.pickled(path) else state[:1]
        if {item.device for item in some if isinstance(item, Tensor)} - {device}:
            state = [item.to(device) if isinstance(item, Tensor) else item for item in state]
    elif state.device != device:
        state = state.to(device)
    if spec.merge is not None:
        return spec.merge(local, list(map(thaw, state)))
    if spec.finish is not None and plan.contributors[path] > 1:
        return spec.finish(state)
    if spec.kind != "cat":
        return state
    if isinstance(local, list):
        return state if isinstance(state, list) else [state]
    return torch.stack(state) if isinstance(state, list) else state
