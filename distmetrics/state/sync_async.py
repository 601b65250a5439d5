"""Metrics computed over all ranks in the background, while training goes on."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from distmetrics.comm.background import Handle, start
from distmetrics.comm.base import Communicator
from distmetrics.comm.current import chosen
from distmetrics.errors import StateError
from distmetrics.state.adapters.registry import targets
from distmetrics.state.metric_set import communicator_of
from distmetrics.state.sync import sync_and_compute


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
    talking = chosen(comm)
    if comm is None:
        try:
            talking = communicator_of(targets(metrics), talking)
        except StateError:  # told to all ranks where the state is read
            talking = chosen(comm)
    snapshot = copy.deepcopy(metrics)
    return start(partial(_computed, snapshot, allow_pickle, name), talking)


def _computed(metrics: Any, allow_pickle: bool, name: str, comm: Communicator) -> Any:
    return sync_and_compute(metrics, allow_pickle=allow_pickle, comm=comm, name=name)
