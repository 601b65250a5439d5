"""Reductions over trees of tensors: sum, max, min, prod, and the mean weighted by samples.

Small data rides in the first round and is folded in rank order; large data is reduced by the
transport, whose bytes do not grow with the world. Sums are kept wide (float32 for half precision,
int64 for integers), so neither a rounding nor an overflow gets in silently (but int64 itself wraps,
as everywhere in torch).
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from distmetrics.collectives.buckets import is_dtensor, layout, pack, short_name, unpack
from distmetrics.collectives.dtensor import Part, replica, term_of
from distmetrics.collectives.exchange import exchange_alike, inline_capacity
from distmetrics.collectives.header import Prepared, Problem, prepare
from distmetrics.comm.call_lock import one_call
from distmetrics.comm.communicator import Communicator, Op, chosen, fold
from distmetrics.errors import InputError, InputTypeError

T = TypeVar("T")
Reduction = Literal["sum", "max", "min", "prod"]


@one_call
def all_reduce(
    tree: T, op: Reduction = "sum", *, comm: Communicator | None = None, name: str = ""
) -> T:
    """Reduce every leaf over all ranks, elementwise; every rank gets the same bits.

    Args:
        tree: tensors or numbers of equal shapes and dtypes on all ranks.
        op: "sum", "max", "min" or "prod". A mean needs the weight of each rank: :func:`mean`.
        comm: default the communicator in force.
        name: shown in errors.

    Returns: the same tree. Dtypes are kept, but sum and prod of bool are counted in int64. NaN on
        one rank is NaN on all.

    Raises:
        MismatchError: trees, shapes, dtypes or ``op`` differ between ranks (on every rank, before
            data moves).
        InputError: an unknown ``op``, "mean", or an integer result that its dtype cannot hold.
        InputTypeError: a leaf cannot be reduced so, such as the maximum of complex numbers.

    >>> run(2, lambda comm: all_reduce(torch.tensor([1, comm.rank]), comm=comm))[0]
    tensor([2, 1])
    """
    comm = chosen(comm)
    problem = None
    if op not in get_args(Reduction):
        do = "use sum, max, min or prod; or mean(x, weight=len(batch)); weight=1 counts every rank "
        problem = Problem("InputError", f"no reduction {op!r}", f"{do}alike.")
    take = partial(_term, op=op)
    mine = prepare(f"all_reduce {op}", name, tree, comm, take=take, problem=problem)
    wide = [tensor.detach().to(wide_dtype(tensor.dtype)) for tensor in mine.tensors]
    leaves = []
    for reduced, old in zip(_reduce(comm, mine, wide, op), mine.tensors, strict=True):
        leaves.append(_narrowed(reduced, old.dtype, op, comm.rank).to(old.device))
    result: T = mine.spec.unflatten(leaves)
    return result


@one_call
def mean(tree: T, weight: float | Tensor, *, comm: Communicator | None = None, name: str = "") -> T:
    """Return the mean of every leaf over all ranks, each rank counted by its weight.

    mean = Σᵣ wᵣ·xᵣ / Σᵣ wᵣ, summed in float64. With ``weight`` = number of samples behind ``x``
    this is the mean over all samples, however unevenly the ranks share them; a rank without data
    passes weight 0, and its ``x`` is not looked at, even where it is the NaN that the mean of
    nothing is.

    Args:
        tree: tensors or numbers of the same shapes on all ranks; integers are averaged as float64,
            never floored.
        weight: finite, non-negative, 0-dim; the sum over ranks must be positive.
        comm: default the communicator in force.
        name: shown in errors.

    Returns: the same tree; floating and complex leaves keep their dtype, integer and bool leaves
    become float64.

    Raises:
        MismatchError: trees, shapes or dtypes differ between ranks (on every rank, before data
            moves).
        InputError: a weight is negative, not finite or no single number; all weights are zero (on
            every rank).

    >>> run(2, lambda comm: mean(torch.tensor(float(comm.rank)), weight=1 + comm.rank, comm=comm))
    [tensor(0.6667), tensor(0.6667)]
    """
    comm = chosen(comm)
    number, problem = _checked_weight(weight)
    mine = prepare("mean", name, tree, comm, take=term_of, about=repr(number), problem=problem)
    # The weight of a DTensor counts once for its mesh.
    leads = {one.name: one.holders[0] == comm.rank for one in mine.header.dtensors}
    weights = [number if leads.get(name, True) else 0.0 for name in mine.names] or [number]
    scaled = [torch.tensor(weights, dtype=torch.float64, device="cpu")]
    for tensor in mine.tensors:
        x = tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)
        scaled.append(x * number if number else torch.zeros_like(x))
    whole, *sums = _reduce(comm, mine, scaled, "sum")
    totals = whole.tolist()
    if 0.0 in totals:
        raise InputError(
            "mean: the weights of all ranks are zero, so there is nothing to average",
            likely="no rank had data.",
            do="skip the mean where no rank has samples.",
            rank=comm.rank,
            peers=range(comm.world_size),
            site=mine.header.site,
        )
    leaves = []
    for each, total, old in zip(sums, totals, mine.tensors, strict=False):
        kept = old.is_floating_point() or old.is_complex()
        leaves.append((each / total).to(old.device, old.dtype if kept else torch.float64))
    result: T = mine.spec.unflatten(leaves)
    return result


def _reduce(comm: Communicator, mine: Prepared, tensors: Sequence[Tensor], op: Op) -> list[Tensor]:
    """Agree, then reduce tensors of one ``op``; results on ``comm.device``."""
    mine.prove(comm, tensors)
    where = layout(tensors)
    run = pack(tensors, where, comm.device)
    fits = where.nbytes <= inline_capacity(comm.world_size)
    runs = exchange_alike(comm, mine.header, run if fits else run[:0])
    for bucket in where.buckets:
        if fits:
            reduced = fold([bucket.view(each) for each in runs], op)
        else:
            reduced = reduce_large(comm, bucket.view(run), op)
        bucket.view(run).copy_(reduced)
    return unpack(run, where)


def reduce_large(comm: Communicator, x: Tensor, op: Op) -> Tensor:
    """Reduce by the transport's own all_reduce, complex numbers and NaN included; no agreement."""
    if x.numel() == 0:
        return x
    if x.is_complex():
        if op == "sum":
            return torch.view_as_complex(comm.all_reduce(torch.view_as_real(x), op))
        return fold(comm.all_gather(x), op)
    if op in ("max", "min") and x.is_floating_point():
        # Transports compare with < and lose NaN on some ranks: reduce the numbers and the NaNs
        # apart.
        nan = x.isnan()
        filler = float("-inf" if op == "max" else "inf")
        reduced = comm.all_reduce(x.masked_fill(nan, filler), op)
        return reduced.masked_fill(comm.all_reduce(nan.to(torch.uint8), "max").bool(), float("nan"))
    return comm.all_reduce(x, op)


def _checked_weight(weight: Any) -> tuple[float, Problem | None]:
    """Return the weight as a number, or zero and the problem with it."""
    whole: Any = replica(weight) if is_dtensor(weight) else weight
    # Not numbers: several, a part of a DTensor, an integer of hundreds of digits.
    with suppress(TypeError, ValueError, OverflowError, RuntimeError):
        number = float(whole.detach() if isinstance(whole, Tensor) else whole)
        if 0.0 <= number < float("inf"):
            return number, None
    what = f"the weight is {reprlib.repr(weight)}, which is no finite number from 0 on"
    return 0.0, Problem("InputError", what, "pass the number of samples behind x on this rank.")


def _term(part: Part, where: str, op: str) -> Tensor:
    """Return what this rank adds; raise InputTypeError for what ``op`` can't reduce."""
    dtype = part.local.dtype
    if dtype == torch.uint64 or (dtype.is_complex and op in ("max", "min")):
        raise InputTypeError(f"{where} is {short_name(dtype)}, of which torch has no {op}")
    return term_of(part, where, op)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return a dtype in which reducing loses nothing, and that transports know."""
    if dtype.is_complex:
        return torch.promote_types(dtype, torch.complex64)
    if dtype.is_floating_point:
        return torch.float64 if dtype == torch.float64 else torch.float32
    return torch.int64


def _narrowed(result: Tensor, dtype: torch.dtype, op: str, rank: int) -> Tensor:
    """Return a wide result in the dtype that the user gets."""
    if dtype.is_floating_point or dtype.is_complex:
        return result.to(dtype)
    if dtype == torch.bool:
        return result.bool() if op in ("max", "min") else result
    limits = torch.iinfo(dtype)
    if result.numel() and (result.min() < limits.min or result.max() > limits.max):
        raise InputError(
            f"all_reduce {op}: the result, up to {result.abs().max().item()}, does not fit into "
            f"{short_name(dtype)}",
            do="reduce x.long().",
            rank=rank,
        )
    return result.to(dtype)
