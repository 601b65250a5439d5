"""States that are DTensors: this rank's part of each takes part in the sync.

Of copies one is sent, terms of sums are sent as they are, and rows are joined. A state of fixed
size that ranks hold in pieces stays in pieces: each is reduced among the ranks that hold the same
one, and what the metric is given is a DTensor again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from distmetrics.collectives.buckets import is_dtensor
from distmetrics.collectives.dtensor import (
    Part,
    Shared,
    part_of,
    rows_of,
    term_of,
    whole_part,
)
from distmetrics.collectives.ops import reduce_large, wide_dtype
from distmetrics.comm.call_lock import take
from distmetrics.comm.communicator import Call, Communicator, call_under_way
from distmetrics.errors import InputTypeError, StateError
from distmetrics.metrics.adapters.base import StateSpec, Target, compute, parts_of
from distmetrics.metrics.metric_set import ABSENT, OPS, MetricSet
from distmetrics.metrics.plan import StatePlan
from distmetrics.tree import map_leaves

_REDUCED = ("sum", "max", "min")
_PLAIN = "update the metric with plain tensors: x.full_tensor(), or x.to_local()."


def take_parts(local: MetricSet, comm: Communicator) -> None:
    """Read this rank's part of each state that is a DTensor; the metrics stay as they are."""
    mixed = {at for _, at, _, value in local.states if local.updates[at] and _dtensors(value)}
    rows: dict[int, set[str]] = {place: set() for place in mixed}  # placements of lists
    for at, (path, place, spec, value) in enumerate(local.states):
        if place not in mixed or value is ABSENT or (isinstance(value, list) and not value):
            continue
        try:
            spec, value, parts = _taken(path, spec, value, comm)
        except InputTypeError as error:
            raise StateError(f"the state {error.what}", do=_PLAIN) from error
        local.states[at] = path, place, spec, value
        about = sorted({part.placements for part in parts})
        rows[place].update(about if spec.kind in ("cat", "items") else ())
        text = f"{'; '.join(about)}, {local.updates[place]} updates"
        name = f"{spec.name} of {_name(local.targets[place])}"
        local.shared.append(Shared(name, parts[0].holders, text))
    for place, placements in rows.items():  # lists of one metric belong together, row by row
        if len(placements) > 1:
            raise StateError(
                f"the lists of {_name(local.targets[place])} hold DTensors of "
                f"{' and '.join(sorted(placements))}: their rows would not go together",
                do=_PLAIN,
            )


def _name(target: Target) -> str:
    return target.path or type(target.metric).__name__


def _dtensors(value: Any) -> list[Any]:
    return [item for item in parts_of(value) if type(item) is not Tensor and is_dtensor(item)]


def _taken(
    path: str, spec: StateSpec, value: Any, comm: Communicator
) -> tuple[StateSpec, Any, list[Part]]:
    """Return how a state is synced, what of it is sent, and the parts of its DTensors."""
    items = parts_of(value)
    if len(_dtensors(value)) < len(items):
        raise InputTypeError(
            f"{path} is no DTensor, and another of its metric is: whether it counts once for a "
            "mesh or on each rank is not said"
        )
    parts = [part_of(item, comm, path) for item in items]
    if spec.kind in ("cat", "items"):
        take = rows_of if spec.kind == "cat" else whole_part
        kept = [take(part, path) for part in parts if part.counts]
        if isinstance(value, list):
            return spec, kept, parts
        return spec, kept[0] if kept else ABSENT, parts
    (part,) = parts
    if spec.kind in _REDUCED:
        if part.pieces:
            which = f"{sorted(part.pieces.items())} of {list(value.shape)}"
            spec = replace(spec, piece=which, finish=partial(_as_dtensor, value))
            return spec, term_of(part._replace(pieces={}), path, spec.kind), parts
        value = term_of(part._replace(counts=True), path, spec.kind)
    else:
        value = whole_part(part, path)
    return spec, value if part.counts else ABSENT, parts


def _as_dtensor(like: Any, piece: Tensor) -> Any:
    """Return a reduced piece as a DTensor of which nothing is left to be reduced."""
    from torch.distributed.tensor import DTensor, Replicate

    placements = [Replicate() if each.is_partial() else each for each in like.placements]
    return DTensor.from_local(
        piece,
        like.device_mesh,
        placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def reduce_pieces(
    pieces: Sequence[StatePlan], tensors: Mapping[str, Tensor], comm: Communicator
) -> dict[str, Tensor]:
    """Return the pieces of this rank, each reduced among the ranks that hold the same one."""
    result = {}
    for state in pieces:
        piece, group = tensors[state.path], comm.transport
        if 1 < len(state.ranks) < comm.world_size:
            group = group.subgroup(state.ranks)
            take(group, call_under_way() or Call("sync of metrics"))
        if len(state.ranks) > 1:
            wide = piece.to(group.device, wide_dtype(state.dtype))
            piece = reduce_large(group, wide, OPS.get(state.kind, "sum")).to(state.dtype)
        result[state.path] = piece
    return result


def compute_replicated(metrics: Any) -> Any:
    """Compute metrics from states of which some are DTensors; their values are none."""
    from torch.distributed.tensor.experimental import implicit_replication

    with implicit_replication():  # of the plain tensors beside them
        values = compute(metrics)
        return map_leaves(lambda leaf: leaf.full_tensor() if is_dtensor(leaf) else leaf, values)
