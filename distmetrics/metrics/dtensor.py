"""States that are DTensors: of copies one is sent, terms are sent as they are, rows are joined.

A state of fixed size that ranks hold in pieces stays in pieces: each is a state of its own on the
way, and what the metric is given is a DTensor again.
"""

from __future__ import annotations

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
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import InputTypeError, StateError
from distmetrics.metrics.adapters.base import compute, parts_of
from distmetrics.metrics.metric_set import ABSENT, MetricSet, State
from distmetrics.tree import map_leaves

_REDUCED = ("sum", "max", "min")
_PLAIN = "update the metric with plain tensors: x.full_tensor(), or x.to_local()."


def take_parts(local: MetricSet) -> None:
    """Read this rank's part of each state that is a DTensor; the metrics stay as they are."""
    others = [state for state in local.states if type(state.value) is not Tensor]  # few, as a rule
    mixed = {x.place for x in others if local.updates[x.place] and _dtensors(x.value)}
    rows: dict[int, set[str]] = {place: set() for place in mixed}  # placements of lists
    for at, state in enumerate(local.states):
        if state.place not in mixed or state.is_empty:
            continue
        try:
            local.states[at], parts = _taken(state, local.comm)
        except InputTypeError as error:
            raise StateError(f"the state {error.what}", do=_PLAIN) from error
        about = sorted({part.placements for part in parts})
        if state.spec.kind in ("cat", "items"):
            rows[state.place].update(about)
        text = f"{'; '.join(about)}, {local.updates[state.place]} updates"
        name = f"{state.spec.name} of {local.targets[state.place].name}"
        local.shared.append(Shared(name, parts[0].holders, text))
    for place, placements in rows.items():  # lists of one metric belong together, row by row
        if len(placements) > 1:
            raise StateError(
                f"the lists of {local.targets[place].name} hold DTensors of "
                f"{' and '.join(sorted(placements))}: their rows would not go together",
                do=_PLAIN,
            )


def _dtensors(value: Any) -> list[Any]:
    return [item for item in parts_of(value) if type(item) is not Tensor and is_dtensor(item)]


def _taken(state: State, comm: Communicator) -> tuple[State, list[Part]]:
    """Return what is sent of a state, and how; and the parts of its DTensors."""
    path, _, spec, value = state
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
        sent = kept if isinstance(value, list) else next(iter(kept), ABSENT)
        return state._replace(value=sent), parts
    (part,) = parts
    if spec.kind in _REDUCED:
        sent = term_of(part._replace(pieces={}), path, spec.kind)
    else:
        sent = whole_part(part, path)
    if part.pieces:
        which = f" {sorted(part.pieces.items())} of {list(value.shape)}"
        spec = spec._replace(piece=which, finish=partial(_as_dtensor, value))
    counts = part.counts or part.pieces
    return state._replace(spec=spec, value=sent if counts else ABSENT), parts


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


def compute_replicated(metrics: Any) -> Any:
    """Compute metrics from states of which some are DTensors; their values are none."""
    from torch.distributed.tensor.experimental import implicit_replication

    with implicit_replication():  # of the plain tensors beside them
        values = compute(metrics)
        return map_leaves(lambda leaf: leaf.full_tensor() if is_dtensor(leaf) else leaf, values)
