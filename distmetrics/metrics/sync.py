"""Make metrics see the data of all ranks: for the length of a block, or for one computation.

Describe local state → agree → plan → move → combine → put the global state in → compute → put the
local state back, whatever happened. One collective for all sum, mean, max and min states together,
two where there are lists.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from distmetrics.call_site import call_site
from distmetrics.collectives.exchange import exchange, inline_capacity
from distmetrics.collectives.header import Problem, agree
from distmetrics.comm.call_lock import exchanges_over, one_call
from distmetrics.comm.communicator import Communicator, chosen, numbered
from distmetrics.errors import LayoutError, StateError
from distmetrics.metrics.adapters.base import communicator_of, compute, targets
from distmetrics.metrics.attributes import borrow
from distmetrics.metrics.dtensor import compute_replicated, reduce_pieces, take_parts
from distmetrics.metrics.metric_set import MetricSet, Values, combine, describe, on_device
from distmetrics.metrics.plan import UPDATES, SyncPlan, plan
from distmetrics.metrics.repeated_samples import note, warn_of_duplicates, warn_of_repeats

_in_sync: set[int] = set()  # identities of the metrics that some thread is syncing
_lock = threading.Lock()


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
        if sync_plan is not None and sync_plan.pieces:
            return compute_replicated(metrics)
        return compute(metrics)


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
    local, talking = read(metrics, comm)
    with _marked(local):
        values = global_values(local, talking, name, allow_pickle=allow_pickle, comm=chosen(comm))
        if len(local.targets) != len(values):
            raise StateError(
                f"this rank has {len(local.targets)} metrics, and those with values {len(values)}",
                do="pass the same metrics on every rank, or use sync_and_compute, which gives "
                "results.",
            )
        with local.holding(values):
            yield local.plan
            reset = local.reset_meanwhile()
    for metric in reset:  # as it would be in one process; what a wrapper's compute resets as well
        metric.reset()


def read(metrics: Any, comm: Communicator | None) -> tuple[MetricSet, Communicator]:
    """Return the metrics and who syncs them; what is wrong with them, all ranks must hear."""
    local, talking = MetricSet([]), chosen(comm)
    try:
        local = MetricSet(targets(metrics))
        if comm is None:
            talking = communicator_of(local.targets, talking)
        _check_syncable(local, type(metrics).__name__)
        take_parts(local, talking)
    except (LayoutError, StateError) as error:
        local.states = []  # of which no data moves
        local.problem = Problem.of(error)
    return local, talking


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


@contextmanager
def _marked(local: MetricSet) -> Iterator[None]:
    """Mark metrics as being synced inside the block; it is a problem if they are already."""
    identities = {id(target.metric) for target in local.targets}
    try:
        with _lock:
            is_shared = not _in_sync.isdisjoint(identities)
            _in_sync.update(identities)
        if is_shared and local.problem is None:
            local.problem = Problem(
                "StateError",
                "a metric is being synced already: another rank, a thread of this process, has "
                "the same object, or the call is inside of a block of synced(…)",
                "make the metrics in the function that every rank runs, or copy.deepcopy them "
                "there; in the block call compute() alone.",
            )
        yield
    finally:
        with _lock:
            _in_sync.difference_update(identities)


@one_call
@torch.no_grad()
def global_values(
    metrics: MetricSet, talking: Communicator, name: str, *, allow_pickle: bool, comm: Communicator
) -> Values:
    """Return what each metric holds while the state of all ranks is in; the plan is set.

    Describe → agree → plan → move → combine, over ``talking``, which may be of the metrics' own
    process group.
    """
    comm = talking
    if comm.world_size > 1 and metrics.problem is None:
        metrics.problem = warn_of_repeats(metrics, comm)
    header, sent, tensors = describe(metrics, name, call_site(), allow_pickle=allow_pickle)
    if comm.wants_proof:
        comm.witness(header.content(), tensors)
    if comm.world_size == 1:
        agree([header], comm.rank)  # raises its problem
        return metrics.placed({}, metrics.updates)
    inline = sent.inline.pack(tensors, comm.device)
    bulk = sent.bulk.pack(tensors, comm.device)
    capacity = inline_capacity(comm.world_size)
    own = inline[: sent.inline_bytes(capacity)]
    with numbered(comm):
        met = exchange(comm, header, torch.cat([own, bulk]) if bulk.numel() else own)
        metrics.plan = sync_plan = plan(met.blobs, metrics.order, comm.rank, capacity)
        runs = []
        for theirs, run in zip(sync_plan.sent, met.move(), strict=True):
            start = theirs.inline_bytes(capacity)
            runs.append((run[:start], run[start:]))
        combined = combine(sync_plan, runs, inline, comm)
        if sync_plan.pieces:
            combined |= reduce_pieces(sync_plan.pieces, tensors, comm)
        warn_of_duplicates(sync_plan, runs, comm)
        borrowed = borrow(sync_plan, metrics.targets, header, comm) if sync_plan.borrowing else {}
    exchanges_over()
    values = metrics.placed(combined, combined[UPDATES].tolist())
    for place, attributes in borrowed.items():
        values[place].update(on_device(attributes, metrics.targets[place].device))
    return values
