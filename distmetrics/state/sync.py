"""Make metrics see the data of all ranks: for the length of a block, or for one computation.

Read local state → manifest → plan → execute → put the global state in → compute → put the local state back, whatever
happened. One collective for all sum, mean, max and min states together, two where there are lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from distmetrics.comm.base import Communicator, call_site
from distmetrics.comm.current import chosen
from distmetrics.errors import StateError
from distmetrics.state.adapters import compute, targets
from distmetrics.state.adapters.base import Target
from distmetrics.state.describe import describe, structure
from distmetrics.state.execute import execute
from distmetrics.state.plan import UPDATES, SyncPlan
from distmetrics.state.spec import StateSpecs

__all__ = ["sync_and_compute", "synced"]

_ABSENT = object()


def sync_and_compute(metrics: Any, *, comm: Communicator | None = None, name: str = "") -> Any:
    """Compute metrics over the data of all ranks, as one process that saw it all would have.

    All metrics are synced together, in one or two collectives, however many they are. Local state is as before
    afterwards, also when computing raises.

    Args:
        metrics: a torchmetrics metric or ``MetricCollection``, or a mapping, sequence or module that holds such.
        comm: default the communicator in force.
        name: shown in errors.

    Returns: the metric's value; for a mapping the same keys with values, for a sequence a list, for another module a
        dict from the metric's path to its value. The same on every rank.

    Raises:
        MismatchError: the metrics differ between ranks (on every rank, before data moves).
        StateError: a state can't be sent, or ``metrics`` holds none (on every rank).

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
def synced(metrics: Any, *, comm: Communicator | None = None, name: str = "") -> Iterator[SyncPlan | None]:
    """Put the state of all ranks into the metrics for the length of the block; afterwards local state is back.

    Inside, ``metric.compute()`` does not sync again. What ``metric.update()`` adds there is lost with the state of all
    ranks; ``metric(…)`` is refused by torchmetrics.

    Args:
        metrics: as for :func:`sync_and_compute`.
        comm: default the communicator in force.
        name: shown in errors.

    Yields: the plan that was carried out (``print(plan.describe())``), or None in a world of one.

    Raises: as :func:`sync_and_compute`.
    """
    comm = chosen(comm)
    found = targets(metrics)
    saved = [target.specs.fetch(target.home) for target in found]
    values = [held[: len(target.specs.each)] for target, held in zip(found, saved, strict=True)]
    with torch.no_grad():
        plan, states, updates = _gather(found, values, comm, name, type(metrics).__name__)
    try:  # everything is saved before the first change: an interrupt at any point loses nothing
        for target, new, count in zip(found, states, updates, strict=True):
            _put(target, new, count)
        yield plan
    finally:
        for target, held in zip(found, saved, strict=True):
            target.home.update(zip(target.specs.saved, held, strict=True))


def _put(target: Target, states: Sequence[Any], updates: int) -> None:
    """Put the state of all ranks into one metric, and mark it so that computing does not sync again."""
    home, adapter = target.home, target.adapter
    home.update(zip(target.specs.names, states, strict=True))
    home.update(adapter.marks)
    if adapter.counter:
        home[adapter.counter] = updates


def _gather(
    found: Sequence[Target], values: Sequence[Sequence[Any]], comm: Communicator, name: str, given: str
) -> tuple[SyncPlan | None, list[list[Any]], list[int]]:
    """Return the plan, and for each target the states of all ranks and the number of updates."""
    updates = [target.adapter.updates(target.metric) for target in found]
    if comm.world_size == 1:
        _refuse(found, given)
        return None, [[_copy(value) for value in held] for held in values], updates
    specs = [target.specs for target in found]
    shape = structure(tuple([(target.path, type(target.metric).__name__, target.specs) for target in found]))
    problem = None
    try:
        _refuse(found, given)
    except StateError as error:  # told to all ranks, in the round that they are waiting in
        problem = str(error)
    outgoing = describe(shape, specs, values, updates, name, call_site(), problem)
    plan, result = execute(comm, outgoing, shape.order)
    states = [
        _as_before(own, where, held, target.device, plan, result)
        for target, own, where, held in zip(found, specs, shape.paths, values, strict=True)
    ]
    return plan, states, result[UPDATES].tolist()


def _refuse(found: Sequence[Target], given: str) -> None:
    """Raise for what cannot be synced, whatever the other ranks have."""
    if not found:
        raise StateError(
            f"a {given} holds no metric that distmetrics knows\n"
            "Do: pass a torchmetrics metric or MetricCollection, or a mapping, sequence or module that holds some."
        )
    for target in found:
        if target.adapter.is_synced(target.metric):
            raise StateError(
                f"the metric {target.path or type(target.metric).__name__} holds the state of all ranks already\n"
                "Do: inside a block of synced(…) call compute() alone; a second sync would count every rank again."
            )


def _copy(value: Any) -> Any:
    """Copy a local state that computing will see: some metrics change or clear theirs while they compute."""
    return list(value) if isinstance(value, list) else value.clone() if isinstance(value, Tensor) else value


def _as_before(
    specs: StateSpecs,
    paths: Sequence[str],
    values: Sequence[Any],
    device: torch.device,
    plan: SyncPlan,
    result: Mapping[str, Any],
) -> list[Any]:
    """Give the combined states of one metric the types and the device that its code expects."""
    if specs.reduced and plan.complete:  # most metrics: nothing to do but to find the way back to the metric's device
        states = [result[path] for path in paths]
        return states if not states or states[0].device == device else [state.to(device) for state in states]
    states = []
    for spec, path, local in zip(specs.each, paths, values, strict=True):
        state = result.get(path, _ABSENT)
        if state is _ABSENT:
            state = _copy(local)  # no rank has touched it
        else:
            if isinstance(state, list):
                state = [item.to(device) if isinstance(item, Tensor) else item for item in state]
            elif state.device != device:
                state = state.to(device)
            if spec.finish is not None and plan.contributors[path] > 1:
                state = spec.finish(state)
            elif spec.kind == "cat" and isinstance(local, list):
                state = [state]
        states.append(state)
    return states
