"""From what every rank tells of one state to how these become one. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from distmetrics.collectives.manifest import Manifest
from distmetrics.collectives.pack import LeafSpec, dtype_of
from distmetrics.errors import MismatchError
from distmetrics.state.received import FIXED, parse_note


@dataclass(frozen=True, slots=True)
class StatePlan:
    """One state: how it is combined, and from which ranks.

    Attributes:
        path: of the state: the metric's path and the state's name.
        kind: as in :class:`~distmetrics.state.adapters.StateSpec`.
        ranks: those that have something to add.
        dtype: of the result, to which all ranks' values can be promoted.
        shape: of one rank's value, for kinds of a fixed size.
        same_as: the path of a state that shares its tensor with this one on all ranks, or None.
        piece: for "piece": how it is reduced, and which one; ``ranks`` are those that hold it.
    """

    path: str
    kind: str
    ranks: tuple[int, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    same_as: str | None
    piece: str = ""


def plan_of(
    path: str,
    by_path: Mapping[str, Mapping[int, LeafSpec]],
    manifests: Sequence[Manifest],
    rank: int,
) -> StatePlan:
    """Return how one state becomes one.

    Args:
        path: of the state.
        by_path: what each rank tells of each state that it has touched.
        manifests: every rank's.
        rank: the rank that asks.

    Raises:
        MismatchError: what the ranks have does not go together.
    """
    leaves = by_path[path]
    notes = [parse_note(leaf.note) for leaf in leaves.values()]
    kinds = {kind for kind, _, _ in notes}
    kind = next(iter(kinds))
    if kinds == {"piece"}:
        return _piece(path, leaves, manifests, rank)
    ranks = tuple(leaves)
    # Ranks without elements have the dtype and shape of a filler, and those are not to be compared.
    filled = tuple(r for r, leaf in leaves.items() if 0 not in leaf.shape) or ranks[:1]
    shapes: set[tuple[int, ...]] = set()  # as far as they must be equal
    if kind in FIXED:
        shapes = {leaf.shape for leaf in leaves.values()}
    elif kind == "cat":
        ranks = filled
        shapes = {leaves[r].shape[1:] for r in ranks}
    if len(kinds) > 1 or len(shapes) > 1:
        differing = "kinds of values" if len(kinds) > 1 else "shapes"
        raise _uneven(path, leaves, manifests, rank, differing)
    dtypes = [dtype_of(leaves[r].dtype) for r in filled]
    try:
        dtype = functools.reduce(torch.promote_types, dtypes)
    except RuntimeError as error:  # there are dtypes that go with no other
        raise _uneven(path, leaves, manifests, rank, "dtypes") from error
    sources = {shared for _, shared, _ in notes}
    same_as = sources.pop() if len(sources) == 1 else ""
    if same_as and by_path[same_as].keys() != leaves.keys():
        same_as = ""
    return StatePlan(path, kind, ranks, dtype, leaves[ranks[0]].shape, same_as or None)


def _piece(
    path: str, leaves: Mapping[int, LeafSpec], manifests: Sequence[Manifest], rank: int
) -> StatePlan:
    """Plan a state of which ranks hold pieces: those that hold the same one reduce it."""
    if len(leaves) < len(manifests):
        raise _uneven(path, leaves, manifests, rank, "nothing, or pieces of a DTensor,")
    pieces = {r: parse_note(leaf.note)[2] for r, leaf in leaves.items()}
    ranks = tuple(r for r, piece in pieces.items() if piece == pieces[rank])
    if len({leaves[r][1:3] for r in ranks}) > 1:
        raise _uneven(path, leaves, manifests, rank, "pieces")
    own = leaves[rank]
    return StatePlan(path, "piece", ranks, dtype_of(own.dtype), own.shape, None, pieces[rank])


def _uneven(
    path: str,
    leaves: Mapping[int, LeafSpec],
    manifests: Sequence[Manifest],
    rank: int,
    differing: str,
) -> MismatchError:
    op = manifests[rank].call().op
    return MismatchError(
        f"{op}: the state {path} has {differing} on different ranks that do not go together",
        per_rank={r: f"{leaf}  {manifests[r].site or ''}" for r, leaf in leaves.items()},
        notes=["No data was moved; every metric keeps its local state."],
        likely="metrics made with different arguments (num_classes, thresholds), or inputs of "
        "different width or kind.",
        do="make the metric with the same arguments on every rank.",
        rank=rank,
        peers=leaves,
        site=manifests[rank].site,
    )
