"""A rank's gradients, in groups that are placed alike, and the norms of what it holds of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.dtensors import is_dtensor, lines_of, placements_of, ranks_asked
from distmetrics.collectives.prepare import check_sendable
from distmetrics.collectives.reduce import reduce_large
from distmetrics.comm.base import Communicator
from distmetrics.comm.group import GroupCommunicator
from distmetrics.errors import InputError, InputTypeError
from distmetrics.layouts.mesh import SHARD, Mesh

# Elements of which the CPU's kernel makes a sum of float32: of 20 million it is wrong by 1 in 1000.
_RUN = 1 << 14
_DOUBLE = (torch.float64, torch.complex128)
PLAIN = "plain gradients"


class Told(NamedTuple):
    """What a rank tells the others of a group of its gradients.

    Attributes:
        what: what errors call the group.
        shared: the name of weights that several stages hold, or "".
        mesh: a digest of the ranks among which DTensors are placed, counted from the first.
        apart: the axes of the layout along which other ranks hold other gradients.
        about: their number and elements, the same on all ranks that hold pieces of them.
        piece: which piece is this rank's.
        norm: of this piece; NaN for a term that is still to be reduced.
        is_pending: whether it is such a term.
        is_double: whether some are of double precision.
    """

    what: str
    shared: str
    mesh: str
    apart: tuple[str, ...]
    about: str
    piece: str
    norm: float
    is_pending: bool
    is_double: bool

    @classmethod
    def read(cls, told: Any, layout: Mesh) -> Told:
        """Return what a peer has told over a layout; raise anything for what is none."""
        what, shared, mesh, apart, about, piece, norm, is_pending, is_double = told
        if norm < 0:
            raise ValueError(f"a norm of {norm}")
        axes = tuple(axis for axis in layout.sizes if axis in apart)
        texts = str(what), str(shared), str(mesh), axes, str(about), str(piece)
        return cls(*texts, float(norm), bool(is_pending), bool(is_double))


@dataclass
class Group:
    """Gradients that are placed alike.

    Attributes:
        what, shared, mesh, apart, piece: see :class:`Told`.
        device_mesh: of DTensors.
        pending: dimensions of it over which terms are to be reduced, with their operations.
        locals: what this rank holds of each gradient.
        shapes: of the whole gradients.
    """

    what: str
    shared: str
    mesh: str
    apart: tuple[str, ...]
    piece: str = ""
    device_mesh: Any = None
    pending: dict[int, str] = field(default_factory=dict)
    locals: list[Tensor] = field(default_factory=list)
    shapes: list[torch.Size] = field(default_factory=list)

    def add(self, gradient: Any, where: str) -> None:
        """Add a gradient.

        Raises:
            InputTypeError: it is not dense.
        """
        self.shapes.append(gradient.shape)
        local = gradient if self.device_mesh is None else gradient.to_local()
        if type(local) is not Tensor and hasattr(local, "wait"):  # of a collective under way
            local = local.wait()
        check_sendable(local, where)
        self.locals.append(local)

    def told(self, order: float) -> Told:
        """Return what the other ranks must know, with this rank's norm."""
        about = f"{len(self.shapes)} of {sum(map(math.prod, self.shapes))} elements"
        # Terms are reduced in one run, so the ranks must hold them in the same order.
        order_of_terms = f"{self.mesh} {_digest(self.shapes)}" if self.pending else self.mesh
        norm = math.nan if self.pending else norm_of(self.locals, order)
        is_double = any(local.dtype in _DOUBLE for local in self.locals)
        return Told(
            what=self.what,
            shared=self.shared,
            mesh=order_of_terms,
            apart=self.apart,
            about=about,
            piece=self.piece,
            norm=norm,
            is_pending=bool(self.pending),
            is_double=is_double,
        )

    def reduce(self) -> None:
        """Reduce terms over the ranks that hold them, which all must call it."""
        if not self.pending:
            return
        run = torch.cat([local.reshape(-1) for local in self.locals])
        run = run.float() if run.dtype.itemsize < torch.float32.itemsize else run
        for dim, op in self.pending.items():
            group = GroupCommunicator.of(self.device_mesh.get_group(dim))
            run = reduce_large(group, run, "sum")
            run = run / group.world_size if op == "avg" else run
        self.locals, self.pending = [run], {}


def groups_of(
    parameters: Iterable[Any], shared: Mapping[str, Any], comm: Communicator, mesh: Mesh
) -> list[Group]:
    """Return the gradients of parameters in groups; each parameter counts once.

    Args:
        parameters: those without a gradient are left out.
        shared: weights that several stages hold, by name.
        comm: of all ranks of the mesh.
        mesh: what plain gradients are along its axes.

    Raises:
        InputTypeError: something is no parameter, or a gradient has no norm here.
        InputError: a DTensor lies on a part of an axis.
    """
    names = {parameter: name for name, parameter in shared.items()}
    groups: dict[tuple[Any, ...], Group] = {}
    for number, parameter in enumerate(dict.fromkeys([*parameters, *names])):
        gradient, name = parameter.grad, names.get(parameter, "")
        if gradient is None:
            continue
        where = f"the gradient of parameter {number}"
        is_split = is_dtensor(gradient)
        key = (name, gradient.device_mesh, gradient.placements) if is_split else (name,)
        group = groups.get(key)
        if group is None and is_split:
            group = groups[key] = _placed(gradient, name, where, comm, mesh)
        elif group is None:
            group = groups[key] = Group(PLAIN, name, "", tuple(mesh.axes(SHARD)))
        group.add(gradient, where)
    return [*groups.values()]


def _placed(gradient: Any, name: str, where: str, comm: Communicator, mesh: Mesh) -> Group:
    """Return the group of a DTensor, without it."""
    device_mesh, placements = gradient.device_mesh, placements_of(gradient)
    if device_mesh.get_coordinate() is None:
        raise InputTypeError(f"{where} is a DTensor of a mesh that this rank is no part of")
    me, asked = device_mesh.get_rank(), ranks_asked(comm, device_mesh)
    pieces, pending = [], {}
    held = device_mesh.mesh
    lines = lines_of(held, me)
    for dim, (placement, line) in enumerate(zip(gradient.placements, lines, strict=True)):
        if placement.is_replicate():
            continue
        if outside := sorted({*line} - {*asked}):
            raise InputTypeError(
                f"{where} is a DTensor of {placements}, of which ranks {outside}, which are not "
                "asked, have parts",
                do="pass a communicator of all ranks of its mesh.",
            )
        if not placement.is_partial():
            pieces.append(f"{line.index(me)}/{len(line)}")
        elif placement.reduce_op in ("sum", "avg"):
            pending[dim] = placement.reduce_op
        else:
            raise InputTypeError(
                f"{where} is a DTensor of {placements}, and a {placement.reduce_op} over ranks is "
                "no gradient"
            )
    digest = _digest((held - held.min()).tolist())
    apart = _apart(held.flatten().tolist(), asked, mesh, where)
    piece = " ".join(pieces)
    return Group(f"gradients of {placements}", name, digest, apart, piece, device_mesh, pending)


def _apart(ranks: Sequence[int], asked: Sequence[int], mesh: Mesh, where: str) -> tuple[str, ...]:
    """Return the axes along which ranks other than a DTensor's hold another one.

    Raises:
        InputError: it lies on some of the ranks along such an axis: are the others copies?
    """
    if not mesh.axes(SHARD):
        return ()
    numbers = {rank: number for number, rank in enumerate(asked)}
    holders = [numbers[rank] for rank in ranks if rank in numbers]
    places = torch.unravel_index(torch.tensor(holders), tuple(mesh.sizes.values()))
    apart = []
    for along, (axis, size) in zip(places, mesh.sizes.items(), strict=True):
        extent = len({*along.tolist()})
        if mesh.roles[axis] != SHARD or extent == size > 1:
            continue
        if extent > 1:
            raise InputError(
                f"{where} is a DTensor of {extent} of the {size} ranks along {axis}",
                do=f"make a layout with the axes of its mesh, of which {axis} is made up.",
            )
        apart.append(axis)
    return tuple(apart)


def _digest(value: object) -> str:
    return hashlib.blake2b(str(value).encode(), digest_size=8).hexdigest()


def norm_of(tensors: Iterable[Tensor], order: float) -> float:
    """Return the norm of some tensors, as if joined."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        if not tensor.numel():  # of nothing there is no largest element
            continue
        alike = kinds.setdefault((tensor.device, tensor.dtype), [])
        if tensor.is_cpu and tensor.numel() > _RUN:
            alike += torch.split(tensor.reshape(-1), _RUN)
        else:
            alike.append(tensor)
    norms: list[float] = []
    for (device, dtype), alike in kinds.items():
        wide = None
        if dtype.itemsize < torch.float32.itemsize:
            wide = torch.float64 if device.type == "cpu" else torch.float32
        # torch's public get_total_norm rounds each norm to the gradients' own dtype.
        norms += torch.stack(torch._foreach_norm(alike, order, dtype=wide)).tolist()
    return joined(norms, order)


def joined(norms: Sequence[float], order: float) -> float:
    """Return the norm of vectors end to end from their norms, whatever their order, bit for bit.

    >>> joined([3.0, 4.0], 2.0), joined([1e200, 1e200], 1.0), joined([], 2.0)
    (5.0, 2e+200, 0.0)
    """
    if any(map(math.isnan, norms)):
        return math.nan
    largest = max(norms, default=0.0)
    if largest in (0.0, math.inf) or order == math.inf:
        return largest
    # Relative to the largest, so that no power overflows.
    powers = math.fsum(math.pow(norm / largest, order) for norm in norms)
    return largest * math.pow(powers, 1 / order)
