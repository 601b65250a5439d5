"""The norm of gradients that ranks hold as copies, in pieces, or each its own."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from distmetrics.call_site import call_site
from distmetrics.collectives.buckets import is_dtensor, wide_dtype
from distmetrics.collectives.dtensor import Part, local_of, part_of
from distmetrics.collectives.header import Header, Problem, check_sendable
from distmetrics.collectives.ops import gather_messages, reduce_large
from distmetrics.comm.communicator import Communicator, chosen, one_call
from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.errors import InputError, InputTypeError, LayoutError, Ranks
from distmetrics.layouts.communicator import layout
from distmetrics.layouts.mesh import SAME, SHARD, Mesh
from distmetrics.layouts.proof import RELATIVE
from distmetrics.message import Message

# Elements of which the CPU's kernel makes a sum of float32: of 20 million it is wrong by 1 in 1000.
_RUN = 1 << 14


class GradientNorm(Message, frozen=True):
    """What a rank tells the others of its gradients that are placed alike."""

    what: str  # their placements, mesh, number and elements
    shared: str  # the name of weights that several stages hold, or ""
    apart: tuple[str, ...]  # the axes of the layout along which other ranks hold other gradients
    piece: str = ""  # which one is this rank's
    norm: float = math.nan  # of this piece; NaN for a term that is still to be reduced

    def __str__(self) -> str:
        name = f' of the shared "{self.shared}"' if self.shared else ""
        piece = f", piece {self.piece}" if self.piece else ""
        return f"{self.what}{name}{piece}, norm {self.norm:.7g}"


class GradientNorms(Message, frozen=True):
    """What a rank tells the others of all its gradients."""

    norms: tuple[GradientNorm, ...]
    are_double: bool


@dataclass
class _Alike:
    """Gradients that are placed alike: what this rank holds of each, and their whole shapes."""

    told: GradientNorm
    pending: Any = None  # one of them, if they are terms that are still to be reduced
    locals: list[Tensor] = field(default_factory=list)
    shapes: list[torch.Size] = field(default_factory=list)

    def measured(self, order: float) -> GradientNorm:
        """Return what the other ranks must know, with this rank's norm."""
        elements = sum(map(math.prod, self.shapes))
        what = f"{self.told.what}: {len(self.shapes)} of {elements} elements"
        if self.pending is not None:
            # They are reduced in one run, so they must be in the same order.
            return self.told.but(what=f"{what}, {_digest(self.shapes)}")
        return self.told.but(what=what, norm=norm_of(self.locals, order))

    def reduce(self) -> None:
        """Reduce terms over the ranks that hold them, which all must call it."""
        if self.pending is None:
            return
        run = torch.cat([local.reshape(-1) for local in self.locals])
        run = run.to(wide_dtype(run.dtype))
        for dim, placement in enumerate(self.pending.placements):
            if placement.is_partial():
                group = GroupCommunicator.of(self.pending.device_mesh.get_group(dim))
                run = reduce_large(group, run, "sum")
                run = run / group.world_size if placement.reduce_op == "avg" else run
        self.locals, self.pending = [run], None


def norm_of(tensors: Iterable[Tensor], order: float) -> float:
    """Return the norm of some tensors, as if joined."""
    runs: list[Tensor] = []
    for tensor in tensors:
        if not tensor.numel():  # of nothing there is no largest element
            continue
        if tensor.dtype.itemsize < torch.float32.itemsize:  # to which torch would round the norm
            wide = torch.float64 if tensor.is_cpu else torch.float32
            runs.append(torch.linalg.vector_norm(tensor, order, dtype=wide))
        else:
            runs += torch.split(tensor.reshape(-1), _RUN) if tensor.is_cpu else [tensor]
    return float(torch.nn.utils.get_total_norm(runs, order))


def _gradients(
    parameters: Iterable[Any], names: Mapping[Any, str], comm: Communicator, mesh: Mesh
) -> list[_Alike]:
    """Return the gradients of parameters by placement; each parameter counts once."""
    groups: dict[Any, _Alike] = {}
    for number, parameter in enumerate(dict.fromkeys(parameters)):
        gradient, name = parameter.grad, names.get(parameter, "")
        if gradient is None:
            continue
        where = f"the gradient of parameter {number}"
        local = local_of(gradient) if is_dtensor(gradient) else gradient
        check_sendable(local, where)
        key = name, getattr(gradient, "device_mesh", None), getattr(gradient, "placements", None)
        if key not in groups:
            groups[key] = _placed(gradient, name, where, comm, mesh)
        groups[key].locals.append(local)
        groups[key].shapes.append(gradient.shape)
    return [*groups.values()]


def _placed(gradient: Any, name: str, where: str, comm: Communicator, mesh: Mesh) -> _Alike:
    """Return what the placements of a gradient say, without its data."""
    part, what = Part(gradient), "plain gradients"
    if is_dtensor(gradient):
        # Of FSDP2 over tensor parallelism: in which order its pieces lie does not matter here.
        part = part_of(gradient, comm, where, also="_StridedShard")
        held = gradient.device_mesh.mesh
        what = f"gradients of {part.placements} on the mesh {_digest((held - held.min()).tolist())}"
    if not {*part.pending} <= {"sum", "avg"}:
        raise InputTypeError(
            f"{where} is a DTensor of {part.placements}, whose norm is unknown",
            do="pass gradients that are whole, pieces, sums or averages.",
        )
    varied = mesh.varied(part.holders)
    for axis in varied:
        extent, size = len({mesh.place(rank)[axis] for rank in part.holders}), mesh.sizes[axis]
        if extent < size and mesh.roles[axis] == SHARD:  # whether the others have copies?
            raise InputError(
                f"{where} is a DTensor of {extent} of the {size} ranks along {axis}",
                do=f"make a layout with the axes of its mesh, of which {axis} is made up.",
            )
    apart = tuple(axis for axis in mesh.axes(SHARD) if axis not in varied)
    told = GradientNorm(what, name, apart, " ".join(part.pieces.values()))
    return _Alike(told, gradient if part.pending else None)


def _digest(value: object) -> str:
    return hashlib.blake2b(str(value).encode(), digest_size=8).hexdigest()


def grad_norm(
    parameters: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    *,
    shared: Mapping[str, Tensor] | None = None,
    comm: Communicator | None = None,
) -> Tensor:
    """Return the norm of all gradients of a model, as one process has it, on every rank.

    The norm is ``(Σ |g|ᵖ)^(1/p)`` over the elements g of all gradients, each once; for inf the
    largest ``|g|``. The placements of DTensors say which ranks hold which elements (FSDP2, HSDP,
    tensor-parallel, in any mixture). Other gradients are taken for copies: plain ones, as
    DistributedDataParallel leaves them, and DTensors on another mesh. Copies count once, and are
    compared: their norms must agree to one part in a thousand.

    It takes one collective; gradients stay where they are. Gradients that are still ``Partial``, as
    tensor parallelism leaves them for weights that it does not split, are reduced first. That takes
    one more collective, and one for each dimension of their meshes.

    Args:
        parameters: one or several. Those without a gradient are left out; one that comes twice
            counts once. A rank without parameters must call it too.
        norm_type: p, at least 1, or inf.
        shared: weights that several stages hold, such as tied embeddings, by a name that those
            stages agree on: each counts once. They may be in ``parameters`` as well.
        comm: the ranks that hold parts of the model; default all ranks of the current communicator,
            without its layout, which is one of data. Or a layout of the parameters: along "shard"
            axes ranks hold different ones, along "same" axes the same.

    Returns:
        a 0-dim tensor, the same on every rank, on the device of the first gradient; float64 if some
        rank has gradients of double precision, else float32. It is 0 if there are no gradients, NaN
        or infinite if some are.

    Raises:
        LayoutError: copies differ, or shards of the layout are copies.
        InputError: ``norm_type`` is below 1, or only one rank along an axis has values.
        InputTypeError: a parameter is not a tensor, or a gradient is not dense.
        MismatchError: ranks differ in ``norm_type`` or in the layout. Every rank raises each of
            these.

    >>> from distmetrics import grad_norm, layout
    >>> def norm(comm):  # two stages of a pipeline, with a weight each
    ...     weight = torch.nn.Parameter(torch.zeros(1))
    ...     weight.grad = torch.tensor([3.0 + comm.rank])
    ...     return grad_norm(weight, comm=layout({"pp": 2}, pp="shard", comm=comm))
    >>> run(2, norm)
    [tensor(5.), tensor(5.)]
    """
    whole = chosen(comm).whole
    flat = Mesh({"rank": whole.world_size}, {"rank": SAME})
    mesh = comm.mesh if isinstance(comm, layout) else flat
    return _norm(parameters, norm_type, shared, mesh, comm=whole)


@one_call
@torch.no_grad()
def _norm(
    parameters: Any, norm_type: Any, shared: Any, mesh: Mesh, *, comm: Communicator
) -> Tensor:
    gradients: list[_Alike] = []
    header, order = Header("grad_norm", site=call_site()), math.nan
    try:
        order, listed, names = _checked(parameters, norm_type, shared, mesh)
        header = header.but(op=f"grad_norm of order {order:g} over {mesh}")
        gradients = _gradients(listed, names, comm, mesh)
    except InputError as error:
        header = header.but(problem=Problem.of(error))
    dtypes = {local.dtype.to_real() for each in gradients for local in each.locals}
    for _ in range(2):  # terms have no norm until they are reduced
        told = tuple([each.measured(order) for each in gradients])
        mine = GradientNorms(told, torch.float64 in dtypes)
        ranks = gather_messages(comm, mine, header, "what it tells of its gradients")
        norms = [each.norms for each in ranks]
        value = total(norms, mesh, order, comm.rank)
        if not math.isnan(value):
            break
        # In an order that all ranks share which hold the terms.
        for each in sorted(gradients, key=lambda each: (each.told.what, each.told.shared)):
            each.reduce()
    dtype = torch.float64 if any(each.are_double for each in ranks) else torch.float32
    device = gradients[0].locals[0].device if gradients else comm.device
    return torch.tensor(value, dtype=dtype, device=device)


def total(norms: Sequence[Sequence[GradientNorm]], mesh: Mesh, order: float, rank: int) -> float:
    """Return the norm from the messages of all ranks; raises LayoutError. Pure."""
    groups: dict[tuple[Any, ...], dict[int, GradientNorm]] = {}
    for holder, parts in enumerate(norms):
        place = mesh.place(holder)
        for part in parts:
            stage = tuple(place[axis] for axis in mesh.sizes if axis in part.apart)
            key = (part.shared,) if part.shared else (part.what, stage)
            groups.setdefault(key, {})[holder] = part
    counted = [0.0]
    seen: dict[tuple[str, float], int] = {}
    for holders in groups.values():
        holder, first = next(iter(holders.items()))
        alike = mesh.sizes.keys() - first.apart
        expected: set[int] = set()
        for each in holders:
            if each not in expected:
                expected.update(mesh.along(each, alike))
        is_odd = len({part.what for part in holders.values()}) > 1 or len(expected) > len(holders)
        copies: dict[str, list[float]] = {}
        for part in holders.values():
            copies.setdefault(part.piece, []).append(part.norm)
        for own in copies.values():
            # Not so of what is not finite, which makes the norm so.
            is_odd |= max(own) - min(own) > RELATIVE * max(own)
            counted.append(sum(own) / len(own))  # so that it does not matter which is taken
        if is_odd:
            raise _differ(sorted(expected), norms, rank)
        # A number that is no integer is hardly the same by chance; a largest element may well be,
        # after a clip by value say.
        if first.apart and not first.shared and order < math.inf and first.norm % 1 > 0:
            ranks = [seen.setdefault((first.what, first.norm), holder), holder]
            if ranks[0] != holder:
                where = f"along {' and '.join(first.apart)}, said to hold other parameters, "
                raise LayoutError(
                    ["grad_norm: ", where, Ranks(ranks), f" hold {first}: it would count twice"],
                    do='say "same" of an axis along which gradients are reduced; a layout of data '
                    "is not one of parameters. Weights that stages tie: shared={name: weight}.",
                    rank=rank,
                    peers=ranks,
                )
    return float(torch.linalg.vector_norm(torch.tensor(counted, dtype=torch.float64), order))


def _differ(
    ranks: Sequence[int], norms: Sequence[Sequence[GradientNorm]], rank: int
) -> LayoutError:
    return LayoutError(
        ["grad_norm: ", Ranks(ranks), " should hold the same gradients, and do not"],
        per_rank={each: "; ".join(map(str, norms[each])) or "none" for each in ranks},
        likely="gradients that are not reduced yet, as in no_sync(), or that only some ranks have; "
        "or ranks that hold other parameters.",
        do="ask after they are reduced; where ranks hold other parameters, as pipeline stages do, "
        'pass comm=layout(mesh, pp="shard", ...), and the others as "same".',
        rank=rank,
        peers=ranks,
    )


def _checked(
    parameters: Any, norm_type: Any, shared: Any, mesh: Mesh
) -> tuple[float, list[Tensor], dict[Tensor, str]]:
    """Return what :func:`grad_norm` was given, as it is used: the order, weights, and names."""
    order = math.nan
    with contextlib.suppress(TypeError, ValueError):
        order = float(norm_type)
    if not order >= 1:
        raise InputError(f"norm_type must be a number from 1 on, or inf, got {norm_type!r}")
    if isinstance(parameters, Tensor) or not isinstance(parameters, Iterable):
        parameters = [parameters]
    shared = {} if shared is None else shared
    listed = [*parameters, *(shared.values() if isinstance(shared, Mapping) else [[shared]])]
    for each in listed:
        if not isinstance(each, Tensor):
            raise InputTypeError(
                f"parameters must be tensors, got a {type(each).__name__}",
                do="pass model.parameters(), and shared= as a dict of parameters by name.",
            )
    for axis in mesh.owned:
        raise InputError(
            f"only coordinate {mesh.roles[axis]} along the axis {axis} is said to have values, and "
            "all have gradients",
            do=f'say {axis}="{SHARD}" where stages hold other parameters, "{SAME}" where they hold '
            "the same.",
        )
    return order, listed, {parameter: str(name) for name, parameter in shared.items()}
