"""From the runs of bytes that the ranks sent to the state of all ranks. Touches no metric."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.buckets import Bucket
from distmetrics.collectives.reduce import reduce_large
from distmetrics.collectives.wire import deserialize
from distmetrics.comm.communicator import Communicator, Op, fold
from distmetrics.message import reading
from distmetrics.metrics.adapters.base import StateSpec
from distmetrics.metrics.plan import Sent, StatePlan, SyncPlan, sizes_of
from distmetrics.metrics.ragged import cut
from distmetrics.metrics.schema import FIXED

HALF = (torch.bfloat16, torch.float16)
_OPS: dict[str, Op] = {"max": "max", "min": "min"}


def combine(
    plan: SyncPlan, runs: Sequence[tuple[Tensor, Tensor]], inline: Tensor, comm: Communicator
) -> dict[str, Any]:
    """Return the combined state for each of the plan's paths.

    A tensor; a list for "items" and "object"; for "each" a list of what the ranks have sent,
    serialized.

    Args:
        plan: of the sync.
        runs: what every rank has sent, in rank order.
        inline: this rank's states of fixed size; where they do not ride along, ``comm`` reduces
            them here.
        comm: who talks.
    """
    rows = []
    lists = []
    for rank, (sent, (fixed, bulk)) in enumerate(zip(plan.sent, runs, strict=True)):
        with reading("its states", rank):
            if plan.is_inline:
                rows.append(_aligned(fixed, sent, plan))
            lists.append(sent.bulk.unpack(bulk))
    if not plan.is_inline:
        rows = [_aligned(inline, plan.sent[comm.rank], plan)]
    result = _combine_fixed(rows, plan, comm)
    for state in plan.states.values():
        if state.kind == "piece":  # reduced apart
            continue
        if state.same_as is not None:
            result[state.path] = result[state.same_as]
        elif state.kind not in FIXED:
            with reading(f"the lists of {state.path}"):
                result[state.path] = _combine_lists(state, lists, plan, comm)
    return result


def _aligned(run: Tensor, sent: Sent, plan: SyncPlan) -> Tensor:
    """Bring one rank's states into the layout of all, with neutral values for what it lacks."""
    if sent.inline == plan.agreed:
        return run
    have = sent.inline.unpack(run)
    tensors = {}
    for path in plan.agreed.paths:
        state = plan.states[path]
        if path in sent.source:
            tensors[path] = have[sent.source[path]].to(state.dtype)
        else:
            tensors[path] = _neutral(state, run.device)
    return plan.agreed.pack(tensors, run.device)


def _neutral(state: StatePlan, device: torch.device) -> Tensor:
    """Return a tensor that changes nothing."""
    value: float = 0
    if state.kind in ("max", "min"):
        if state.dtype == torch.bool:
            lowest, highest = 0.0, 1.0
        elif state.dtype.is_floating_point:
            lowest, highest = -math.inf, math.inf
        else:
            limits = torch.iinfo(state.dtype)
            lowest, highest = limits.min, limits.max
        value = lowest if state.kind == "max" else highest
    return torch.full(state.shape, value, dtype=state.dtype, device=device)


def _combine_fixed(rows: Sequence[Tensor], plan: SyncPlan, comm: Communicator) -> dict[str, Any]:
    """Fold the reduced states, stack the others: one operation a bucket, then one view a state."""
    result: dict[str, Any] = {}
    for bucket in plan.agreed.layout.buckets:
        views = [bucket.view(row) for row in rows]
        if bucket.key == "stack":
            whole = torch.stack(views if plan.is_inline else comm.all_gather(views[0]))
        else:
            whole = _fold(views, bucket, plan.is_inline, comm)
        for index, part in zip(bucket.members, bucket.split(whole), strict=True):
            path = plan.agreed.paths[index]
            if bucket.key in ("stack", "mean"):
                part = _finished(part, plan.states[path], bucket.dtype)
            result[path] = part
    return result


def _finished(part: Tensor, state: StatePlan, dtype: torch.dtype) -> Tensor:
    """Return a state without the ranks that have nothing to add to it."""
    if state.kind == "mean":
        return _mean(part, len(state.ranks), dtype)
    # One rank's state needs no stack.
    return part[list(state.ranks)] if len(state.ranks) > 1 else part[state.ranks[0]]


def _mean(total: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Divide a wide sum; the mean of integers is no integer, but one rank's value is as it is."""
    if count == 1:
        return total.to(dtype)
    mean = total / count
    return mean.to(dtype) if dtype.is_floating_point or dtype.is_complex else mean


def _fold(views: Sequence[Tensor], bucket: Bucket, is_inline: bool, comm: Communicator) -> Tensor:
    """Reduce a bucket, in its own dtype; a mean is left as the sum that is to be divided."""
    op: Op = _OPS.get(bucket.key, "sum")
    dtype = bucket.dtype
    is_mean = bucket.key == "mean"
    if dtype in HALF:  # loses counts above 256 or 2048
        views = [view.float() for view in views]
    elif is_mean and not dtype.is_floating_point and not dtype.is_complex:
        views = [view.long() for view in views]
    elif dtype == torch.bool:  # the sum of bools is "any", as it is within one process
        views = [view.to(torch.uint8) for view in views]
        op = "max" if op == "sum" else op
    whole = fold(views, op) if is_inline else reduce_large(comm, views[0], op)
    return whole if is_mean else whole.to(dtype)


def _combine_lists(
    state: StatePlan, per_rank: Sequence[Mapping[str, Tensor]], plan: SyncPlan, comm: Communicator
) -> Any:
    """Join what has a length of its own on each rank, in rank order."""
    sent = plan.sent
    parts = [per_rank[r][sent[r].source[state.path]] for r in state.ranks]
    if state.kind == "each":
        return parts
    if state.kind == "object":
        objects: list[Any] = []
        for part in parts:
            objects += deserialize(part, allow_pickle=plan.allow_pickle, accelerator=comm.device)
        return objects
    parts = [part.to(state.dtype) for part in parts]
    if state.kind == "cat":
        joined = torch.cat(parts)
        numbers = all(state.path in sent[r].forms for r in state.ranks)
        return list(joined.unbind()) if numbers else joined  # as one process would hold them
    result: list[Tensor] = []
    for r, part in zip(state.ranks, parts, strict=True):
        sizes = per_rank[r].get(sizes_of(sent[r].source[state.path]))
        result += cut(part, sent[r].forms[state.path], sizes)
    return result


def alone(spec: StateSpec, value: Any) -> Any:
    """Return the state of all ranks in a world of one."""
    if spec.merge is None:
        return copied(value)
    return spec.merge(value, [copy.deepcopy(value if spec.start is None else spec.start(value))])


def copied(value: Any) -> Any:
    """Copy a local state that computing will see: some metrics change theirs as they compute."""
    if isinstance(value, list):
        return list(value)
    return value.clone() if isinstance(value, Tensor) else value


def as_before(
    spec: StateSpec,
    local: Any,
    combined: Any,
    device: torch.device,
    ranks: Sequence[int],
    allow_pickle: bool,
) -> Any:
    """Give a combined state the type and the device that its metric's code expects.

    Args:
        spec: of the state.
        local: its value on this rank.
        combined: the state of all ranks.
        device: of the metric.
        ranks: those that have added something.
        allow_pickle: whether objects of any class are unpickled.
    """
    is_list = isinstance(combined, list)
    if not is_list:
        combined = combined if combined.device == device else combined.to(device)
    elif {getattr(item, "device", None) for item in combined} - {device}:
        combined = on_device(combined, device)
    if spec.merge is not None:
        with reading("its states"):
            states = [deserialize(run, allow_pickle=allow_pickle) for run in combined]
        return spec.merge(local, states)
    if spec.finish is not None and (len(ranks) > 1 or spec.kind == "piece"):
        return spec.finish(combined)
    if spec.kind != "cat":
        return combined
    if isinstance(local, list):
        return combined if is_list else [combined]
    return torch.stack(combined) if is_list else combined


def on_device(value: Any, device: torch.device) -> Any:
    """Return a tensor, or what lists, tuples and dicts hold, on ``device``; the rest as it is."""
    if isinstance(value, Tensor):
        return value if value.device == device else value.to(device)
    if type(value) in (list, tuple):
        return type(value)([on_device(item, device) for item in value])
    if type(value) is dict:
        return {key: on_device(item, device) for key, item in value.items()}
    return value
