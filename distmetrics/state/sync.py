"""Make metrics see the data of all ranks: for the length of a block, or for one computation.

Describe local state → exchange → plan → combine → put the global state in → compute → put the local
state back, whatever happened. One collective for all sum, mean, max and min states together, two
where there are lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from distmetrics.collectives.exchange import exchange, inline_capacity
from distmetrics.collectives.manifest import Manifest, Problem, testify
from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.base import Communicator, numbered
from distmetrics.comm.current import chosen
from distmetrics.comm.one_call import as_one_call, in_one_call, in_turn, over_layout
from distmetrics.comm.sites import call_site
from distmetrics.errors import LayoutError, StateError
from distmetrics.state.adapters import targets
from distmetrics.state.combine import alone, as_before, combine, copied, on_device
from distmetrics.state.compute_groups import check_equal
from distmetrics.state.describe import Outgoing, describe
from distmetrics.state.dtensors import computed, reduce_pieces, take_parts
from distmetrics.state.fed_by import warn_of_copies, warn_of_repeats
from distmetrics.state.held_twice import copies
from distmetrics.state.marking import Mark, marked
from distmetrics.state.metric_set import ABSENT, MetricSet, Values, communicator_of
from distmetrics.state.plan import SyncPlan, plan
from distmetrics.state.received import UPDATES
from distmetrics.state.unregistered_attributes import attributes_of, borrowed, described


@as_one_call
def sync_and_compute(
    metrics: Any, *, allow_pickle: bool = False, comm: Communicator | None = None, name: str = ""
) -> Any:
    """Compute metrics over the data of all ranks, as one process that saw it all would have.

    All metrics are synced together, in one or two collectives, however many they are. Local state
    is as before afterwards, also when computing raises; only a metric that resets itself as it
    computes is reset.

    Args:
        metrics: a metric of torchmetrics, torcheval or :func:`~distmetrics.from_function`, a
            ``MetricCollection``, or a mapping, sequence or module that holds such.
        allow_pickle: sync states that hold objects of any class too, by pickling them. Unpickling
            runs code that the sender chooses, so it is for ranks that you trust.
        comm: default the process group that the metrics were made for (``process_group=``), else
            the communicator in force. Metrics of different groups need a call for each group.
        name: shown in errors.

    Returns: the metric's value; for a mapping the same keys with values, for a sequence a list, for
        another module a dict from the metric's path to its value. The same on every rank.

    Raises:
        MismatchError: the metrics, or ``allow_pickle``, differ between ranks (on every rank, before
            data moves).
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
    with synced(metrics, allow_pickle=allow_pickle, comm=comm, name=name) as sync_plan:
        return computed(metrics, sync_plan)


@contextmanager
def synced(
    metrics: Any, *, allow_pickle: bool = False, comm: Communicator | None = None, name: str = ""
) -> Iterator[SyncPlan | None]:
    """Put the state of all ranks into the metrics for the length of the block.

    Afterwards local state is back. Inside, ``metric.compute()`` does not sync again. What
    ``metric.update()`` adds there is lost with the state of all ranks; ``metric(…)`` is refused by
    torchmetrics. A metric that is reset inside is reset afterwards, unless the block ends in an
    exception.

    Args:
        metrics: as for :func:`sync_and_compute`.
        allow_pickle: as for :func:`sync_and_compute`.
        comm: as for :func:`sync_and_compute`.
        name: shown in errors.

    Yields: the plan that was carried out (``print(plan.describe())``), or None in a world of one.

    Raises: as :func:`sync_and_compute`.
    """
    with marked() as mark:
        local, sync_plan, values = _of_all_ranks(
            metrics, mark, name, allow_pickle=allow_pickle, comm=comm
        )
        try:  # everything was read before the first change: an interrupt at any point loses nothing
            local.write(values)
            yield sync_plan
            reset = [
                target.metric
                for target in local.targets
                if target.adapter.flag and not target.is_synced
            ]
        finally:
            try:
                local.put_back(values)
            except BaseException:  # a handler of a signal may raise half-way
                local.put_back(values)
                raise
    for metric in reset:  # as it would be in one process; what a wrapper's compute resets as well
        metric.reset()


@in_turn
def _of_all_ranks(
    metrics: Any, mark: Mark, name: str, *, allow_pickle: bool, comm: Communicator | None
) -> tuple[MetricSet, SyncPlan | None, Values]:
    """Return the metrics, the plan, and what each holds while the state of all ranks is in."""
    held: list[tuple[MetricSet, SyncPlan | None]] = []

    def make() -> Values:
        local, talking, problem = _metric_set(metrics, comm)
        shared = mark(local, type(metrics).__name__)
        with torch.no_grad(), numbered(talking):
            sync_plan, values = _values_of_all(
                local, talking, name, problem or shared, allow_pickle=allow_pickle
            )
        held.append((local, sync_plan))
        return values

    values = over_layout(chosen(comm), make)
    if not held:
        held.append((_without_values(metrics, values), None))
    (local, sync_plan), *_ = held
    return local, sync_plan, values


def _without_values(metrics: Any, values: Values) -> MetricSet:
    """Return the metrics of a rank whose layout gives it the state of others.

    Raises:
        StateError: they are other metrics than those of the ranks with values.
    """
    local = MetricSet(targets(metrics))
    if len(local.targets) != len(values):
        raise StateError(
            f"this rank has {len(local.targets)} metrics, and those with values {len(values)}",
            do="pass the same metrics on every rank, or use sync_and_compute, which gives results.",
        )
    return local


def _metric_set(
    metrics: Any, comm: Communicator | None
) -> tuple[MetricSet, Communicator, Problem | None]:
    """Return the metrics, who syncs them, and why they cannot be synced, if they cannot.

    Where there are other ranks they must hear of it, in the round that they are waiting in.

    Raises:
        StateError: they cannot be synced, and there are no other ranks.
    """
    in_force = chosen(comm)
    local = MetricSet([])
    try:
        local = MetricSet(targets(metrics))
        if comm is None:
            in_force = communicator_of(local.targets, in_force)
        _check_syncable(local, type(metrics).__name__)
        take_parts(local, in_force)
    except (LayoutError, StateError) as error:
        if in_force.world_size == 1:
            raise
        local.states = []  # of which no data moves
        return local, in_force, Problem.of(error)
    return local, in_force, None


def _check_syncable(local: MetricSet, kind: str) -> None:
    """Raise StateError for what cannot be synced, whatever the other ranks have."""
    if not local.targets:
        raise StateError(
            f"a {kind} holds no metric that distmetrics knows",
            do="pass a metric of torchmetrics, torcheval or from_function, or a mapping, "
            "sequence or module of some; register_adapter makes other metrics known.",
        )
    for target in local.targets:
        if target.is_synced:
            raise StateError(
                f"the metric {target.path or type(target.metric).__name__} holds the state of all "
                "ranks already",
                do="inside a block of synced(…), or at an epoch's end under SyncMetrics, call "
                "compute() alone; a second sync would count every rank again.",
            )


def _values_of_all(
    local: MetricSet,
    comm: Communicator,
    name: str,
    problem: Problem | None,
    *,
    allow_pickle: bool,
) -> tuple[SyncPlan | None, Values]:
    """Return the plan, and what each metric holds while the state of all ranks is in."""
    values: Values = [{} for _ in local.targets]
    if comm.world_size == 1:
        if hasattr(comm, "witness"):
            alone_here = describe(local, name, None, allow_pickle=allow_pickle)
            testify(comm, alone_here.manifest, alone_here.tensors)
        for _, place, spec, value in local.states:
            if value is not ABSENT:
                values[place][spec.name] = alone(spec, value)
        local.add_flags(values, local.updates)
        return None, values
    problem = problem or warn_of_repeats(local, comm)
    outgoing = describe(local, name, call_site(), problem, allow_pickle=allow_pickle)
    testify(comm, outgoing.manifest, outgoing.tensors)
    sync_plan, result = _exchange_and_combine(outgoing, comm, local.order)
    if sync_plan.merged:
        equal = local.are_equal([(pair.first, pair.other) for pair in sync_plan.merged])
        paths = [target.path for target in local.targets]
        check_equal(sync_plan.merged, equal, paths, outgoing.manifest, comm)
    devices = [target.device for target in local.targets]
    for path, place, spec, value in local.states:
        if path in result:
            ranks = sync_plan.states[path].ranks
            values[place][spec.name] = as_before(
                spec, value, result[path], devices[place], ranks, allow_pickle
            )
        elif value is not ABSENT:  # no rank has touched it
            values[place][spec.name] = copied(value)
    for place, attributes in _borrowed(local, sync_plan, outgoing.manifest, comm).items():
        values[place].update(attributes)
    local.add_flags(values, result[UPDATES].tolist())
    return sync_plan, values


def _exchange_and_combine(
    outgoing: Outgoing, comm: Communicator, order: tuple[str, ...]
) -> tuple[SyncPlan, dict[str, Any]]:
    """Exchange manifests and data, make the plan, carry it out.

    Raises:
        MismatchError: the metrics differ between ranks (on every rank, before data moves).
    """
    capacity = inline_capacity(comm.world_size)

    def make_plan(blobs: Sequence[bytes]) -> SyncPlan:
        return plan(tuple(blobs), order, comm.rank, capacity)

    inline = outgoing.sent.inline.pack(outgoing.tensors, comm.device)
    bulk = outgoing.sent.bulk.pack(outgoing.tensors, comm.device)
    riding = inline if inline.numel() <= capacity else inline[:0]

    groups: list[list[int]] = []

    def rounds() -> tuple[SyncPlan, dict[str, Any]]:
        sync_plan, runs = exchange(comm, outgoing.manifest, riding, bulk, make_plan)
        combined = combine(sync_plan, runs, inline, comm)
        combined |= reduce_pieces(sync_plan, outgoing.tensors, comm)
        groups[:] = copies(sync_plan, runs)  # of what combining could read
        return sync_plan, combined

    result = in_one_call(comm, outgoing.manifest.call, rounds)
    warn_of_copies(groups, comm)
    return result


def _borrowed(
    local: MetricSet, sync_plan: SyncPlan, manifest: Manifest, comm: Communicator
) -> dict[int, dict[str, Any]]:
    """Return the attributes that metrics without an update borrow, by the metric's place.

    Every rank calls this, since it takes a round where the plan says so.
    """
    if not sync_plan.borrowing:
        return {}
    targets = [local.targets[place] for place in sync_plan.borrowing]
    mine = [described(target.adapter.attributes(target.metric)) for target in targets]
    read = partial(attributes_of, count=len(mine))
    about = (comm, manifest.name, manifest.site)
    per_rank = gather_objects(mine, read, *about, op="attributes of metrics")
    result = {}
    columns = zip(*per_rank, strict=True)
    for place, target, column in zip(sync_plan.borrowing, targets, columns, strict=True):
        updated = sync_plan.updated[place]
        values = borrowed(target.path, column, updated, manifest, comm.rank)
        if comm.rank not in updated:
            result[place] = on_device(values, target.device)
    return result
