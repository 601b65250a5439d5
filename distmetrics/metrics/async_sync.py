"""Metrics computed over all ranks in the background, while training goes on."""

from __future__ import annotations

import copy
from typing import Any

import torch

from distmetrics.collectives.header import Problem
from distmetrics.comm.background import Handle, start
from distmetrics.comm.communicator import Communicator
from distmetrics.metrics.adapters.base import parts_of
from distmetrics.metrics.metric_set import MetricSet
from distmetrics.metrics.sync import global_values, read, sync_and_compute


def sync_async(
    metrics: Any, *, allow_pickle: bool = False, comm: Communicator | None = None, name: str = ""
) -> Handle[Any]:
    """Begin what :func:`~distmetrics.sync_and_compute` does; return a handle of its result.

    The metrics are copied, and free at once: they may be updated or reset. Every rank must call it,
    in the same order with its other calls in the background. A few may be under way; the next one
    waits for the first of them.

    Args:
        metrics: as for :func:`~distmetrics.sync_and_compute`.
        allow_pickle: likewise.
        comm: likewise. The exchange has a process group of its own.
        name: shown in errors.

    Returns: a handle; ``result()`` returns the values, or raises on every rank what
        :func:`~distmetrics.sync_and_compute` raises.

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
    local, talking = read(metrics, comm)
    # Copied here: copying a tensor by deepcopy takes ten times as long, and mean average precision
    # has thousands.
    parts = [part for *_, value in local.states for part in parts_of(value)]
    copies = {id(part): part.detach().clone() for part in parts if type(part) is torch.Tensor}
    snapshot, problem = None, None
    try:
        snapshot = copy.deepcopy(metrics, copies)
    except Exception as error:  # noqa: BLE001  (of the metrics' own; result() raises it)
        what = f"a {type(metrics).__name__} cannot be copied: {type(error).__name__}: {error}"
        problem = Problem("StateError", what, "keep what cannot be copied out of the metric.")

    def work(comm: Communicator) -> Any:
        if problem is not None:  # of which all ranks hear, and which is raised on each
            none = MetricSet([])
            none.problem = problem
            return global_values(none, comm, name, allow_pickle=allow_pickle, comm=comm)
        return sync_and_compute(snapshot, allow_pickle=allow_pickle, comm=comm, name=name)

    return start(work, talking)
