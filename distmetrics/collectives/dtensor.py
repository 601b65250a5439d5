"""DTensors: what one rank's part of them adds to the whole. Nothing here communicates.

A DTensor is one tensor that the ranks of a mesh hold together: as copies (``Replicate``), as pieces
(``Shard``), or as terms that are still to be reduced (``Partial``). So of copies one counts, terms
are reduced together with what the other meshes have, and pieces need not be gathered first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.comm.communicator import Communicator
from distmetrics.errors import InputTypeError, LayoutError
from distmetrics.message import Message

WHOLE = (
    "pass x.full_tensor(), which every rank of its mesh must call; the norm of gradients is "
    "distmetrics.grad_norm(parameters)."
)


class Part(NamedTuple):
    """One rank's part of a DTensor; a plain tensor is all its own."""

    local: Tensor
    counts: bool = True  # False for a copy of what another rank of the communicator has
    pending: Mapping[str, int] = {}  # operations still to be done, and over how many ranks
    pieces: Mapping[int, str] = {}  # by dimension: which piece this is, and of how many
    holders: tuple[int, ...] = ()  # the ranks of the communicator that hold the tensor
    placements: str = ""


class Shared(Message, frozen=True):
    """What a rank tells the others of a DTensor; ``about``: what must be equal on its holders."""

    name: str
    holders: tuple[int, ...]
    about: str


def replica(x: Any) -> Tensor | None:
    """Return a DTensor's data where every rank of its mesh has all of it; else None."""
    sizes = zip(x.placements, x.device_mesh.mesh.shape, strict=True)
    is_whole = all(size == 1 or placement.is_replicate() for placement, size in sizes)
    return local_of(x) if is_whole else None


def local_of(x: Any) -> Tensor:
    """Return what this rank holds of a DTensor."""
    local = x.to_local()
    whole: Tensor = local.wait() if hasattr(local, "wait") else local
    return whole


def part_of(x: Any, comm: Communicator, where: str, *, also: str = "") -> Part:
    """Return this rank's part of a DTensor, which is to be counted once among a communicator's.

    ``also``: a kind of pieces that the caller knows, besides ``Shard``.
    """
    mesh = x.device_mesh
    me = mesh.get_rank()
    ranks = [me] if comm.world_size == 1 else comm.members
    counts = True
    pending: dict[str, int] = {}
    pieces: dict[int, str] = {}
    for dim, placement in enumerate(x.placements):
        lines = mesh.mesh.movedim(dim, -1).reshape(-1, mesh.mesh.shape[dim])
        (line,) = lines[(lines == me).any(1)].tolist()
        kind, others = type(placement).__name__, {*line}.difference(ranks)
        if len(line) == 1:
            continue
        _check_role(comm, line, placement, where)
        if kind == "Replicate":
            counts &= next(rank for rank in line if rank in ranks) == me
        elif others:
            why = f", of which ranks {sorted(others)}, which are not asked, have parts"
            raise _refusal(where, str(x.placements), why)
        elif kind == "Partial":
            op = placement.reduce_op
            pending[op] = pending.get(op, 1) * len(line)
        elif kind in ("Shard", also):
            piece = f"{line.index(me)}/{len(line)}"
            pieces[placement.dim] = f"{pieces.get(placement.dim, '')} {piece}".strip()
        else:
            raise _refusal(where, str(x.placements), f", and {kind} is not known here")
    members = {*mesh.mesh.flatten().tolist()}
    holders = tuple(place for place, rank in enumerate(ranks) if rank in members)
    return Part(local_of(x), counts, pending, pieces, holders, str(x.placements))


def whole_part(part: Part, where: str) -> Tensor:
    """Return a tensor of which every rank has all; raise InputTypeError for another."""
    if part.pending or part.pieces:
        raise _refusal(where, part.placements)
    return part.local


def rows_of(part: Part, where: str) -> Tensor:
    """Return the rows that this rank adds to a join along dim 0."""
    if part.pending or {*part.pieces} - {0}:
        raise _refusal(where, part.placements, ", and only pieces of dimension 0 are joined")
    rows = part.local if part.local.ndim else part.local.reshape(1)
    return rows if part.counts else rows[:0]


def term_of(part: Part, where: str, op: str = "sum") -> Tensor:
    """Return what this rank adds to a reduction by ``op``."""
    of_sum = {"sum", "avg"} if op == "sum" else {op}
    if part.pieces or {*part.pending} - of_sum:
        raise _refusal(where, part.placements, f", which {op} cannot reduce")
    if op in ("max", "min"):  # a copy more changes nothing
        return part.local
    if not part.counts:
        return torch.full_like(part.local, 0 if op == "sum" else 1)
    return part.local / part.pending["avg"] if "avg" in part.pending else part.local


def _refusal(where: str, placements: str, why: str = "") -> InputTypeError:
    return InputTypeError(f"{where} is a DTensor of {placements}{why}", do=WHOLE)


def _check_role(comm: Communicator, line: Sequence[int], placement: Any, where: str) -> None:
    """Raise LayoutError where a layout says something else of ranks than a placement."""
    copies = type(placement).__name__ == "Replicate"
    for axis, role in comm.axes_of(line).items():
        if copies is (role != "shard"):
            continue
        says, other = ("other samples", "same") if copies else ("the same samples", "shard")
        raise LayoutError(
            f"along the axis {axis}, said to hold {says}, {where} is a DTensor of {placement!r}",
            do=f'say {axis}="{other}", or redistribute the tensor.',
        )
