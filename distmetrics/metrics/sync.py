"""Make metrics see the data of all ranks: for the length of a block, or for one computation.

Describe local state → agree → plan → move → combine → put the global state in → compute → put the
local state back, whatever happened. One collective for all sum, mean, max and min states together,
two where there are lists.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from distmetrics.call_site import call_site
from distmetrics.collectives.exchange import exchange, inline_capacity
from distmetrics.collectives.header import Problem, agree
from distmetrics.comm.call_lock import exchanges_over, one_call
from distmetrics.comm.communicator import Communicator, chosen, numbered
from distmetrics.data.repeats import note
from distmetrics.errors import LayoutError, StateError
from distmetrics.metrics.adapters.base import targets
from distmetrics.metrics.attributes import borrow
from distmetrics.metrics.combine import alone, as_before, combine, copied, on_device
from distmetrics.metrics.compute_groups import check_merged
from distmetrics.metrics.dtensor import computed, reduce_pieces, take_parts
from distmetrics.metrics.metric_set import ABSENT, MetricSet, Values, communicator_of, describe
from distmetrics.metrics.plan import SyncPlan, plan
from distmetrics.metrics.repeated_samples import warn_of_duplicates, warn_of_repeats
from distmetrics.metrics.schema import UPDATES

Mark = Callable[[MetricSet, str], Problem | None]
_in_sync: set[int] = set()  # identities of the metrics that some thread is syncing
_lock = threading.Lock()


@contextmanager
def marked() -> Iterator[Mark]:
    """Give what marks metrics as being synced until the block ends.

    It returns the problem with metrics that are marked already.
    """
    identities: set[int] = set()

    def mark(local: MetricSet, kind: str) -> Problem | None:
        problem = Problem(
            "StateError",
            f"a metric in this {kind} is being synced already: another rank, a thread of this "
            "process, has the same object, or the call is inside of a block of synced(…)",
            "make the metrics in the function that every rank runs, or copy.deepcopy them there; "
            "in the block call compute() alone.",
        )
        identities.update(id(target.metric) for target in local.targets)
        with _lock:
            is_shared = not _in_sync.isdisjoint(identities)
            _in_sync.update(identities)
        return problem if is_shared else None

    try:
        yield mark
    finally:
        with _lock:
            _in_sync.difference_update(identities)


@one_call
def sync_and_compute(
    metrics: Any,
    *,
    loader: Any = None,
    allow_pickle: bool = False,
    comm: Communicator | None = None,
    name: str = "",
) -> Any:
    """Compute metrics over the data of all ranks, as one process that saw it all would have.

    All metrics are synced together, in one or two collectives, however many they are. Local state
    is as before afterwards, also when computing raises; only a metric that resets itself as it
    computes is reset.

    Args:
        metrics: a metric of torchmetrics, torcheval or :func:`~distmetrics.from_function`, a
            ``MetricCollection``, or a mapping, sequence or module that holds such.
        loader: what the metrics were updated from, to be warned if it repeats samples. Without it,
            that is asked of the loader that this rank has read last, if it has as many batches as
            the metrics have updates.
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
    if loader is not None:
        note(loader, is_asked=True)
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
        local = Local.of(metrics, comm, mark)
        values = global_values(local, name, allow_pickle=allow_pickle, comm=chosen(comm))
        local.check(values)
        with local.metrics.holding(values):
            yield local.plan
            reset = local.metrics.reset_meanwhile()
    for metric in reset:  # as it would be in one process; what a wrapper's compute resets as well
        metric.reset()


@dataclass(slots=True)
class Local:
    """This rank's side of a sync.

    Attributes:
        metrics: to be synced.
        comm: who syncs them.
        problem: why they cannot be synced. Where there are other ranks they must hear of it, in the
            round that they are waiting in.
        plan: of the sync, once it has been made.
    """

    metrics: MetricSet
    comm: Communicator
    problem: Problem | None = None
    plan: SyncPlan | None = None

    @classmethod
    def of(cls, metrics: Any, comm: Communicator | None, mark: Mark) -> Local:
        """Read the metrics."""
        local = cls(MetricSet([]), chosen(comm))
        try:
            local.metrics = MetricSet(targets(metrics))
            if comm is None:
                local.comm = communicator_of(local.metrics.targets, local.comm)
            _check_syncable(local.metrics, type(metrics).__name__)
            take_parts(local.metrics, local.comm)
        except (LayoutError, StateError) as error:
            local.metrics.states = []  # of which no data moves
            local.problem = Problem.of(error)
        shared = mark(local.metrics, type(metrics).__name__)
        local.problem = local.problem or shared
        return local

    def check(self, values: Values) -> None:
        """Check that what a layout has given this rank is the state of its metrics.

        Raises:
            StateError: they are other metrics than those of the ranks with values.
        """
        if len(self.metrics.targets) != len(values):
            raise StateError(
                f"this rank has {len(self.metrics.targets)} metrics, and those with values "
                f"{len(values)}",
                do="pass the same metrics on every rank, or use sync_and_compute, which gives "
                "results.",
            )


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


@one_call
@torch.no_grad()
def global_values(local: Local, name: str, *, allow_pickle: bool, comm: Communicator) -> Values:
    """Return what each metric holds while the state of all ranks is in.

    Describe → agree → plan → move → combine.

    Args:
        local: this rank's side; its plan is set.
        name: the user's name of the call.
        allow_pickle: sync objects of any class too.
        comm: in force; the metrics may be synced by another one, of their process group.
    """
    metrics, comm = local.metrics, local.comm
    if comm.world_size > 1:
        local.problem = local.problem or warn_of_repeats(metrics, comm)
    outgoing = describe(metrics, name, call_site(), local.problem, allow_pickle=allow_pickle)
    outgoing.prove(comm)
    if comm.world_size == 1:
        agree([outgoing.header], comm.rank)  # raises its problem
        return _alone(metrics)
    inline = outgoing.sent.inline.pack(outgoing.tensors, comm.device)
    bulk = outgoing.sent.bulk.pack(outgoing.tensors, comm.device)
    capacity = inline_capacity(comm.world_size)
    own = inline[: outgoing.sent.inline_bytes(capacity)]
    with numbered(comm):
        met = exchange(comm, outgoing.header, torch.cat([own, bulk]) if bulk.numel() else own)
        local.plan = plan(met.blobs, metrics.order, comm.rank, capacity)
        runs = []
        for sent, run in zip(local.plan.sent, met.move(), strict=True):
            start = sent.inline_bytes(capacity)
            runs.append((run[:start], run[start:]))
        combined = combine(local.plan, runs, inline, comm)
        combined |= reduce_pieces(local.plan, outgoing.tensors, comm)
        warn_of_duplicates(local.plan, runs, comm)
        if local.plan.merged:
            check_merged(local.plan.merged, metrics, outgoing.header, comm)
        borrowed = {}
        if local.plan.borrowing:
            borrowed = borrow(local.plan, metrics, outgoing.header, comm)
    exchanges_over()
    values = _placed(metrics, local.plan, combined, allow_pickle)
    for place, attributes in borrowed.items():
        values[place].update(on_device(attributes, metrics.targets[place].device))
    metrics.add_flags(values, combined[UPDATES].tolist())
    return values


def _alone(metrics: MetricSet) -> Values:
    """Return what each metric of a world of one holds."""
    values: Values = [{} for _ in metrics.targets]
    for _, place, spec, value in metrics.states:
        if value is not ABSENT:
            values[place][spec.name] = alone(spec, value)
    metrics.add_flags(values, metrics.updates)
    return values


def _placed(
    metrics: MetricSet, sync_plan: SyncPlan, combined: dict[str, Any], allow_pickle: bool
) -> Values:
    """Return the combined states by metric and name, as each metric's code expects them."""
    values: Values = [{} for _ in metrics.targets]
    devices = [target.device for target in metrics.targets]
    for path, place, spec, value in metrics.states:
        if path in combined:
            ranks = sync_plan.states[path].ranks
            values[place][spec.name] = as_before(
                spec, value, combined[path], devices[place], ranks, allow_pickle
            )
        elif value is not ABSENT:  # no rank has touched it
            values[place][spec.name] = copied(value)
    return values
