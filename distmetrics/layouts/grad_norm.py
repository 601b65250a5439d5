"""The norm of gradients that ranks hold as copies, in pieces, or each its own."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.manifest import Problem
from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.base import Communicator
from distmetrics.comm.current import chosen, whole_of
from distmetrics.comm.one_call import as_one_call
from distmetrics.comm.sites import call_site
from distmetrics.errors import ConfigurationError, InputError, InputTypeError, LayoutError, Ranks
from distmetrics.layouts.close import RELATIVE
from distmetrics.layouts.communicator import layout
from distmetrics.layouts.gradients import PLAIN, Group, Told, groups_of, joined
from distmetrics.layouts.mesh import SAME, SHARD, Coordinates, Mesh

_NOTE = "Every gradient is as it was."
_APART = (
    'where ranks hold other parameters, as pipeline stages do, pass comm=layout(mesh, pp="shard", '
    '...), and the others as "same".'
)


def grad_norm(
    parameters: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    *,
    shared: Mapping[str, Tensor] | None = None,
    comm: Communicator | None = None,
) -> Tensor:
    r"""Return the norm of all gradients of a model, as one process has it, on every rank.

    (Σ |g|ᵖ)^(1/p) over the elements g of all gradients, each once; the largest \|g\| for p = inf.
    Which ranks hold which elements, the placements of DTensors say (FSDP2, HSDP, tensor-parallel,
    in any mixture). What no placement says is a copy: plain gradients, as DistributedDataParallel
    leaves them, and DTensors on the other meshes of a job. Copies count once, and are compared:
    their norms must agree to one part in a thousand.

    One collective; gradients stay where they are. Those that are ``Partial`` still, as tensor
    parallelism leaves them of weights that it does not split, are reduced before, which takes one
    more and one for each dimension of their meshes.

    Args:
        parameters: one or some; those without a gradient, frozen ones say, are left out, and one
            that comes twice counts once. A rank without any must call it too.
        norm_type: p, at least 1, or inf.
        shared: weights that several stages hold, tied embeddings say, by a name that those stages
            agree on: each counts once. They may be in ``parameters`` as well.
        comm: all ranks that hold parts of the model, by default those of the communicator in force,
            whose layout, of data, is not looked at; or a layout of the parameters: along axes that
            are "shard" ranks hold other ones, along "same" axes the same.

    Returns: 0-dim, the same on every rank, on the device of the first gradient; float64 if some
    rank has gradients of double precision, else float32. Zero if there are no gradients; NaN or
    infinite if some are.

    Raises:
        LayoutError: copies differ, or what are said to be shards are copies (on every rank).
        InputError: there is no such norm; or the layout has axes of which one rank has the values.
        InputTypeError: ``parameters`` are none, or a gradient is not dense.
        MismatchError: ranks differ in ``norm_type`` or in the layout.

    >>> def norm(comm):  # two stages of a pipeline, with a weight each
    ...     weight = torch.nn.Parameter(torch.zeros(1))
    ...     weight.grad = torch.tensor([3.0 + comm.rank])
    ...     return grad_norm(weight, comm=layout({"pp": 2}, pp="shard", comm=comm))
    >>> from distmetrics import grad_norm, layout
    >>> run(2, norm)
    [tensor(5.), tensor(5.)]
    """
    whole = whole_of(chosen(comm))
    mesh = Mesh({"rank": whole.world_size}, {"rank": SAME})
    if isinstance(comm, layout):
        mesh = comm.mesh
    return _norm(parameters, norm_type, shared, mesh, comm=whole)


@as_one_call
@torch.no_grad()
def _norm(
    parameters: Any, norm_type: Any, shared: Any, mesh: Mesh, *, comm: Communicator
) -> Tensor:
    groups: list[Group] = []
    problem = None
    order = math.nan  # what is not told because of the problem
    try:
        order = _order(norm_type)
        listed = _listed(parameters)
        _check_roles(mesh)
        groups = groups_of(listed, _checked(shared), comm, mesh)
    except (InputError, ConfigurationError) as error:
        problem = Problem.of(error)
    op = f"grad_norm of order {order:g} over {mesh}"
    gather = functools.partial(_gathered, groups, order, mesh, comm, op)
    told = gather(problem)
    value = total(told, mesh, order, comm.rank)
    if any(each.is_pending for per_rank in told for each in per_rank):
        for group in sorted(groups, key=lambda group: (group.what, group.mesh, group.shared)):
            group.reduce()
        told = gather()
        value = total(told, mesh, order, comm.rank)
    is_double = any(each.is_double for per_rank in told for each in per_rank)
    device = groups[0].locals[0].device if groups else comm.device
    return torch.tensor(value, dtype=torch.float64 if is_double else torch.float32, device=device)


def _gathered(
    groups: Sequence[Group],
    order: float,
    mesh: Mesh,
    comm: Communicator,
    op: str,
    problem: Problem | None = None,
) -> list[list[Told]]:
    """Return what each rank tells of its gradients; raise on all of them what one must refuse."""

    def read(told: Any) -> list[Told]:
        return [Told.read(each, mesh) for each in told]

    mine = [[*group.told(order)] for group in groups]
    return gather_objects(mine, read, comm, "", call_site(), op=op, problem=problem)


def total(told: Sequence[Sequence[Told]], mesh: Mesh, order: float, rank: int) -> float:
    """Return the norm from what all ranks have told. Pure.

    Args:
        told: by each rank.
        mesh: with the roles.
        order: of the norm.
        rank: the one that asks, for the error's attributes.

    Raises:
        LayoutError: ranks do not hold what they are said to.
    """
    stages: dict[tuple[str, ...], list[Coordinates]] = {}
    groups: dict[tuple[Any, ...], dict[int, Told]] = {}
    for holder, parts in enumerate(told):
        for part in parts:
            if part.apart not in stages:
                stages[part.apart] = mesh.places(part.apart)
            key: tuple[Any, ...] = (part.shared,)
            if not part.shared:
                key = part.what, part.mesh, stages[part.apart][holder]
            groups.setdefault(key, {})[holder] = part
    norms = []
    for holders in groups.values():
        _check_holders(holders, stages[next(iter(holders.values())).apart], rank)
        pieces: dict[str, dict[int, Told]] = {}
        for holder, part in holders.items():
            pieces.setdefault(part.piece, {})[holder] = part
        for copies in pieces.values():
            _check_copies(copies, rank)
            # Their mean: each counts as its share, so that it does not matter which is taken.
            share = len(copies) ** (-1 / order)
            norms += [copy.norm * share for copy in copies.values()]
    if order < math.inf:  # largest elements may well be equal, after a clip by value say
        _check_shards(groups, rank)
    return joined(norms, order)


def _check_holders(holders: Mapping[int, Told], stages: Sequence[Coordinates], rank: int) -> None:
    """Check that all ranks of a stage, or of several that share weights, tell the same of them."""
    theirs = {stages[holder] for holder in holders}
    expected = [each for each, stage in enumerate(stages) if stage in theirs]
    abouts = {(part.what, part.mesh, part.about) for part in holders.values()}
    if len(abouts) > 1 or len(expected) != len(holders):
        name = _name(next(iter(holders.values())))
        lines = {each: _line(holders.get(each)) for each in expected}
        raise _differ(f"should have the same {name}, and do not", lines, rank)


def _check_copies(copies: Mapping[int, Told], rank: int) -> None:
    """Check that copies agree but for rounding; what is not finite makes the norm so."""
    norms = [copy.norm for copy in copies.values()]
    if all(map(math.isfinite, norms)) and max(norms) - min(norms) > RELATIVE * max(norms):
        lines = {holder: _line(copy) for holder, copy in copies.items()}
        part = next(iter(copies.values()))
        raise _differ(f"should hold the same {_name(part)}, and they differ", lines, rank)


def _check_shards(groups: Mapping[tuple[Any, ...], Mapping[int, Told]], rank: int) -> None:
    """Check that plain gradients which are said to be of shards are not the same ones."""
    first_of: dict[tuple[float, str], int] = {}
    for key, holders in groups.items():
        holder, part = next(iter(holders.items()))
        # A number that is no integer is hardly the same by chance.
        if key[0] != PLAIN or not part.apart or not part.norm % 1 > 0:
            continue
        first = first_of.setdefault((part.norm, part.about), holder)
        if first != holder:
            axes = " and ".join(part.apart)
            raise LayoutError(
                [
                    f"grad_norm: along {axes}, said to hold other parameters, ",
                    Ranks([first, holder]),
                    f" hold {part.about} with the same norm: they would be counted twice",
                ],
                notes=[_NOTE],
                do='say "same" of an axis along which gradients are reduced; a layout of data '
                "is not one of parameters. Weights that stages tie: shared={name: weight}.",
                rank=rank,
                peers=[first, holder],
            )


def _differ(how: str, lines: Mapping[int, str], rank: int) -> LayoutError:
    return LayoutError(
        ["grad_norm: ", Ranks(lines), f" {how}"],
        per_rank=lines,
        notes=[_NOTE],
        likely="gradients that are not reduced yet, as in no_sync(), or that only some ranks have; "
        "or ranks that hold other parameters.",
        do=f"ask after they are reduced; {_APART}",
        rank=rank,
        peers=lines,
    )


def _name(part: Told) -> str:
    return f'{part.what} of the shared "{part.shared}"' if part.shared else part.what


def _line(part: Told | None) -> str:
    if part is None:
        return "none"
    piece = f", piece {part.piece}" if part.piece else ""
    return f"{part.what}: {part.about}{piece}, norm {part.norm:.7g}"


def _order(norm_type: Any) -> float:
    try:
        order = float(norm_type)
    except (TypeError, ValueError):
        raise InputTypeError(f"norm_type must be a number, got {norm_type!r}") from None
    if not order >= 1:
        raise InputError(
            f"norm_type must be at least 1, or inf, got {order:g}: there is no such norm"
        )
    return order


def _listed(parameters: Any) -> list[Tensor]:
    """Return parameters as a list.

    Raises:
        InputTypeError: they are none.
    """
    if isinstance(parameters, Tensor):
        return [parameters]
    listed = [*parameters] if isinstance(parameters, Iterable) else [parameters]
    for each in listed:
        if not isinstance(each, Tensor):
            raise InputTypeError(
                f"parameters must be tensors, got a {type(each).__name__}",
                do="pass model.parameters().",
            )
    return listed


def _checked(shared: Any) -> Mapping[str, Tensor]:
    shared = {} if shared is None else shared
    if isinstance(shared, Mapping) and all(isinstance(name, str) for name in shared):
        _listed(shared.values())
        return shared
    raise InputTypeError(
        f"shared must be weights by name, got a {type(shared).__name__}",
        do='pass shared={"embedding": weight}, by the same name on each stage that holds it.',
    )


def _check_roles(mesh: Mesh) -> None:
    """Raise InputError for an axis of which only one rank would be asked."""
    for axis in mesh.owned:
        raise InputError(
            f"only rank {mesh.roles[axis]} along the axis {axis} is said to have values, and all "
            "have gradients",
            do=f'say {axis}="{SHARD}" where stages hold other parameters, "{SAME}" where they hold '
            "the same.",
        )
