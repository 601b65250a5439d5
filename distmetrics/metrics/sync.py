"""Make metrics see the data of all ranks: for one computation, for a block, or in the background.

Describe local state → agree → plan → move → combine → put the global state in → compute → put the
local state back, whatever happened. One collective for all sum, mean, max and min states together,
two where there are lists.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.collectives.exchange import exchange, inline_capacity
from distmetrics.collectives.header import Problem, agree
from distmetrics.collectives.ops import meet
from distmetrics.comm.background import Handle, start
from distmetrics.comm.communicator import Communicator, chosen, exchanges_over, numbered, one_call
from distmetrics.errors import LayoutError, StateError
from distmetrics.metrics.adapters.base import communicator_of, compute, parts_of, targets
from distmetrics.metrics.attributes import borrow
from distmetrics.metrics.dtensor import compute_replicated, take_parts
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

    All metrics are synced together: in one collective if their states are small;
    :func:`~distmetrics.explain` says in how many. Afterwards local state is as before, also if
    computing raises; only a metric that resets itself as it computes is reset.

    Args:
        metrics: a metric of torchmetrics, torcheval or :func:`~distmetrics.from_function`, a
            ``MetricCollection``, or a mapping, sequence or module that holds such.
        loader: the loader whose batches have updated the metrics: a
            :class:`~distmetrics.RepeatedSamplesWarning` tells if it repeats samples. Default the
            loader that this rank has read last, if it has as many batches as the metrics have
            updates.
        allow_pickle: sync states that hold objects of any class too, by pickling them. Unpickling
            runs code that the sender chooses, so it is for ranks that you trust.
        comm: default the process group that the metrics were made for (``process_group=``), else
            the current communicator. Metrics of different groups need one call for each group.
        name: shown in errors.

    Returns:
        the metric's value; for a mapping the same keys with values, for a sequence a list, for
        another module a dict from the metric's path to its value. The same on every rank.

    Raises:
        MismatchError: the metrics, or ``allow_pickle``, differ between ranks (on every rank, before
            data moves).
        StateError: a state can't be sent, a metric is being synced already, ``metrics`` holds no
            metric, or metrics of different process groups (on every rank).
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
    local = read(metrics, comm)
    with _marked(local):
        values = sync_states(local, name, allow_pickle)
        with local.holding(values):
            return compute_replicated(metrics) if local.shared else compute(metrics)


@contextmanager
def synced(
    metrics: Any, *, allow_pickle: bool = False, comm: Communicator | None = None, name: str = ""
) -> Iterator[SyncPlan | None]:
    """Put the state of all ranks into the metrics for the length of the block.

    Afterwards local state is back. Inside, ``metric.compute()`` does not sync again. What
    ``metric.update()`` adds inside is lost; torchmetrics refuses ``metric(…)`` there. A metric that
    is reset inside is reset afterwards, unless the block ends in an exception.

    Args:
        metrics: as for :func:`sync_and_compute`.
        allow_pickle: as for :func:`sync_and_compute`.
        comm: as for :func:`sync_and_compute`.
        name: shown in errors.

    Yields:
        the plan that was carried out (``print(plan.describe())``), or None in a world of one.

    Raises:
        StateError: as :func:`sync_and_compute`, or ranks that a layout gives values to have other
            metrics.
        MismatchError: as :func:`sync_and_compute`.
        ConfigurationError: as :func:`sync_and_compute`.

    >>> from torchmetrics import SumMetric
    >>> def total(comm):
    ...     metric = SumMetric()
    ...     metric.update(1.0 + comm.rank)
    ...     with synced(metric, comm=comm):
    ...         of_all = metric.compute().item()
    ...     return of_all, metric.compute().item()
    >>> run(2, total)
    [(3.0, 1.0), (3.0, 2.0)]
    """
    local = read(metrics, comm)
    with _marked(local):
        values = _synced_states(local, name, allow_pickle, comm=chosen(comm))
        if len(values) != len(local.targets):  # which a layout has handed over
            raise StateError(
                f"this rank has {len(local.targets)} metrics, and those with values {len(values)}",
                do="pass the same metrics on every rank.",
            )
        with local.holding(values):
            yield local.plan


def read(metrics: Any, comm: Communicator | None) -> MetricSet:
    """Read the metrics; what is wrong with them becomes a problem, of which all ranks hear."""
    local = MetricSet([], chosen(comm))
    try:
        found = targets(metrics)
        local = MetricSet(found, communicator_of(found, local.comm) if comm is None else comm)
        take_parts(local)
    except (LayoutError, StateError) as error:
        local.states = []  # of which no data moves
        local.problem = Problem.of(error)
        return local
    if not found:
        local.problem = Problem(
            "StateError",
            f"a {type(metrics).__name__} holds no metric that distmetrics knows",
            "pass a metric of torchmetrics, torcheval or from_function, or a mapping, sequence or "
            "module of some; register_adapter makes other metrics known.",
        )
    for target in found:
        if target.is_synced:
            local.problem = Problem(
                "StateError",
                f"the metric {target.name} holds the state of all ranks already",
                "inside a block of synced(…), or at an epoch's end under SyncMetrics, call "
                "compute() alone; a second sync would count every rank again.",
            )
    return local


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


def sync_states(local: MetricSet, name: str, allow_pickle: bool) -> Values:
    """Return what each metric holds while the state of all ranks is in; the plan is set."""
    comm = local.comm
    with torch.no_grad(), numbered(comm):
        if comm.world_size > 1 and local.problem is None:
            local.problem = warn_of_repeats(local, comm)
        header, sent, tensors = describe(local, name, call_site(), allow_pickle=allow_pickle)
        if comm.wants_proof:
            comm.witness(header.content(), tensors)
        if comm.world_size == 1:
            agree([header], comm.rank)  # raises its problem
            return local.placed({}, local.updates)
        inline, data = sent.pack(tensors, comm.device)
        met = exchange(comm, header, data)
        capacity = inline_capacity(comm.world_size)
        local.plan = made = plan(met.blobs, local.order, comm.rank, capacity)
        starts = [theirs.start for theirs in made.sent]
        runs = [(run[:at], run[at:]) for at, run in zip(starts, met.move(), strict=True)]
        combined = combine(made, runs, inline, comm)
        warn_of_duplicates(made, runs, comm)
        borrowed = borrow(made, local.targets, header, comm) if made.borrowing else {}
    exchanges_over()
    values = local.placed(combined, combined[UPDATES].tolist())
    for place, attributes in borrowed.items():
        values[place].update(on_device(attributes, local.targets[place].device))
    return values


@one_call
def _synced_states(
    local: MetricSet, name: str, allow_pickle: bool, *, comm: Communicator
) -> Values:
    """Do the same as a call of its own: over a layout ``comm``, ranks without values get them."""
    return sync_states(local, name, allow_pickle)


def sync_async(
    metrics: Any, *, allow_pickle: bool = False, comm: Communicator | None = None, name: str = ""
) -> Handle[Any]:
    """Begin what :func:`~distmetrics.sync_and_compute` does; return a handle of its result.

    The metrics are copied, so they may be updated or reset at once. Every rank must call it, and in
    the same order as its other background calls. Eight may be under way; the next one waits for the
    first of them.

    Args:
        metrics: as for :func:`~distmetrics.sync_and_compute`.
        allow_pickle: as for :func:`~distmetrics.sync_and_compute`.
        comm: as for :func:`~distmetrics.sync_and_compute`. The exchange has a process group of its
            own.
        name: shown in errors.

    Returns:
        a handle, whose ``wait()`` waits for the end, and whose ``result()`` also returns the values
        or raises what :func:`~distmetrics.sync_and_compute` raises.

    >>> from torchmetrics import MeanMetric
    >>> def score(comm):
    ...     metric = MeanMetric()
    ...     metric.update(torch.arange(1 + 2 * comm.rank))
    ...     handle = sync_async(metric, comm=comm)
    ...     metric.reset()
    ...     return handle.result()
    >>> run(2, score)
    [tensor(0.7500), tensor(0.7500)]
    """
    local = read(metrics, comm)
    # Copied here: copying a tensor by deepcopy takes ten times as long, and mean average precision
    # has thousands.
    parts = [part for *_, value in local.states for part in parts_of(value)]
    copies = {id(part): part.detach().clone() for part in parts if type(part) is Tensor}
    snapshot, problem = None, None
    try:
        snapshot = copy.deepcopy(metrics, copies)
    except Exception as error:  # noqa: BLE001  (of the metrics' own; result() raises it)
        what = f"a {type(metrics).__name__} cannot be copied: {type(error).__name__}: {error}"
        problem = Problem("StateError", what, "keep what cannot be copied out of the metric.")

    def work(comm: Communicator) -> Any:
        if problem is not None:  # of which all ranks hear, and which is raised on each
            meet("sync of metrics", name, comm=comm, problem=problem)
        return sync_and_compute(snapshot, allow_pickle=allow_pickle, comm=comm, name=name)

    return start(work, local.comm)
