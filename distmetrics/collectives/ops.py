"""Collectives over trees of tensors, agreed by all ranks before data moves.

Every function takes keyword-only ``comm`` (default: the current communicator) and ``name`` (shown
in errors). Each must be called by every rank; what ranks disagree on is a
:class:`~distmetrics.errors.MismatchError` on all of them. Calls of two threads on one communicator
must not overlap: the second is refused. An exception that ends a call on one rank alone breaks the
communicator: every later call on it raises, on every rank.

Small data rides in the first round and is folded in rank order; large data is reduced by the
transport, whose bytes do not grow with the world. Sums are kept wide (float32 for half precision,
int64 for integers), so neither a rounding nor an overflow gets in silently (but int64 itself wraps,
as everywhere in torch).
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distmetrics.call_site import call_site
from distmetrics.collectives.buckets import (
    from_bytes,
    is_dtensor,
    layout,
    short_name,
    to_bytes,
    unpack,
    wide_dtype,
)
from distmetrics.collectives.dtensor import Part, replica, rows_of, term_of
from distmetrics.collectives.exchange import agree_on, exchange, exchange_alike, inline_capacity
from distmetrics.collectives.header import Header, Prepared, Problem, agree, prepare
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.communicator import Communicator, Op, chosen, fold, one_call
from distmetrics.errors import InputError, InputTypeError, Site
from distmetrics.message import Message, decode, encode, reading

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Reduction = Literal["sum", "max", "min", "prod"]


def _gather_rows(mine: Prepared[Any], comm: Communicator) -> list[Tensor]:
    """Return each leaf of all ranks, stacked."""
    run, where = mine.pack(comm, mine.tensors)
    runs = exchange_alike(comm, mine.header, run)
    return [*map(torch.stack, zip(*[unpack(each, where) for each in runs], strict=True))]


class _Gather(torch.autograd.Function):
    """Gather; backward, each rank's gradient is the sum of all ranks' gradients of its row."""

    @staticmethod
    def forward(
        ctx: Any, comm: Communicator, mine: Prepared[Any], *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.comm, ctx.name = comm, mine.header.name
        rows = zip(_gather_rows(mine, comm), leaves, strict=True)
        return tuple([row.to(leaf.device) for row, leaf in rows])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Those of integers are zeros, of which nothing flows back.
        sent = {i: x for i, x in enumerate(grads) if x.is_floating_point() or x.is_complex()}
        name = f"{ctx.name} (gradients)".strip()
        sums = all_reduce(sent, "sum", comm=ctx.comm, name=name)
        mine = [sums[i][ctx.comm.rank].clone() if i in sums else None for i in range(len(grads))]
        return (None, None, *mine)


@one_call
def all_gather(
    tree: T, *, sync_grads: bool = False, comm: Communicator | None = None, name: str = ""
) -> T:
    """Return every rank's tree, stacked in rank order: a leaf becomes ``[world_size, *shape]``.

    Args:
        tree: tensors or numbers of any dtype, of equal shapes and dtypes on all ranks. Numbers
            become 0-dim tensors. For DTensors see ``docs/layouts.md``.
        sync_grads: let gradients flow back: the gradient of this rank's leaf is the sum, over all
            ranks, of the gradients of its row. All ranks must then run backward through the result.
            There are no second derivatives.
        comm: default the current communicator.
        name: shown in errors.

    Returns:
        the same tree, leaves on the devices where they were; detached unless ``sync_grads``.

    Raises:
        MismatchError: trees, dtypes or shapes differ between ranks (on every rank, before data
            moves).
        InputTypeError: a leaf is neither a dense tensor nor a number (on every rank).
        InputError: ``sync_grads`` over a layout that gives some ranks the others' result.

    >>> run(2, lambda comm: all_gather({"loss": torch.tensor(comm.rank + 0.5)}, comm=comm))[0]
    {'loss': tensor([0.5000, 1.5000])}
    """
    comm = chosen(comm)
    problem = None
    if sync_grads and comm.hands_over:
        problem = Problem(
            "InputError",
            "gradients cannot flow back over a layout that gives some ranks the result of others",
            "gather over a layout of the ranks with values alone, or leave sync_grads out.",
        )
    op = "all_gather with gradients" if sync_grads else "all_gather"
    mine = prepare(op, name, tree, comm, problem=problem)
    if sync_grads and mine.tensors:
        rows = _Gather.apply(comm, mine, *mine.tensors)  # type: ignore[no-untyped-call]
    else:
        rows = _gather_rows(mine, comm)
    return mine.rebuild(rows)


@one_call
def all_gather_cat(tree: T, *, comm: Communicator | None = None, name: str = "") -> T:
    """Return every rank's tree, joined along dim 0 in rank order; uneven and empty ranks allowed.

    Args:
        tree: tensors of equal dtype and equal shape but for dim 0; 0-dim leaves count as one row. A
            rank without data passes a tensor of 0 rows, or simply ``torch.empty(0)``, whatever the
            others' dtype and shape.
        comm: default the current communicator.
        name: shown in errors.

    Returns:
        the same tree with leaves ``[sum of rows, *rest]``, on the devices where they were.

    Raises:
        MismatchError: trees, dtypes or trailing shapes differ (on every rank, before data moves).
        InputTypeError: a leaf is neither a dense tensor nor a number (on every rank).

    >>> run(3, lambda comm: all_gather_cat(torch.arange(comm.rank), comm=comm))[0]
    tensor([0, 0, 1])
    """
    comm = chosen(comm)
    mine = prepare("all_gather_cat", name, tree, comm, take=rows_of)
    run, _ = mine.pack(comm, mine.tensors)
    met = exchange(comm, mine.header, run)
    headers = met.headers()
    agree(headers, comm.rank, first_axis=1)
    moved = zip(met.move(), headers, strict=True)
    per_rank = [unpack(theirs, layout(header.leaves)) for theirs, header in moved]
    leaves = []
    for parts in zip(*per_rank, strict=True):
        rows = [part for part in parts if part.shape != (0,)] or [parts[0]]
        with reading("rows to be joined"):
            leaves.append(torch.cat(rows))
    return mine.rebuild(leaves)


@one_call
def broadcast(tree: T, src: int = 0, *, comm: Communicator | None = None, name: str = "") -> T:
    """Return rank ``src``'s tree, on every rank.

    Args:
        tree: tensors or numbers of equal shapes and dtypes on all ranks; only ``src``'s values
            count.
        src: the rank that has the values.
        comm: default the current communicator.
        name: shown in errors.

    Returns:
        the same tree, leaves on the devices where they were.

    Raises:
        MismatchError: trees, shapes, dtypes or ``src`` differ between ranks (on every rank).
        InputError: there is no rank ``src`` (on every rank).
        InputTypeError: a leaf is neither a dense tensor nor a number (on every rank).

    >>> run(2, lambda comm: broadcast(torch.tensor(comm.rank), src=1, comm=comm))
    [tensor(1), tensor(1)]
    """
    comm = chosen(comm)
    problem = None
    if not isinstance(src, int) or not 0 <= src < comm.world_size:
        what = f"there is no rank {src!r} in a world of {comm.world_size}"
        problem = Problem("InputError", what)
    mine = prepare(f"broadcast from rank {src}", name, tree, comm, problem=problem)
    run, where = mine.pack(comm, mine.tensors)
    met = exchange(comm, mine.header, run)
    agree(met.headers(), comm.rank)
    received = unpack(met.move_from(src), where)
    return mine.rebuild(map(torch.clone, received))


@one_call
def all_reduce(
    tree: T, op: Reduction = "sum", *, comm: Communicator | None = None, name: str = ""
) -> T:
    """Reduce every leaf over all ranks, elementwise; every rank gets the same bits.

    Args:
        tree: tensors or numbers of equal shapes and dtypes on all ranks.
        op: "sum", "max", "min" or "prod". A mean needs the weight of each rank: :func:`mean`.
        comm: default the current communicator.
        name: shown in errors.

    Returns:
        the same tree. Dtypes are kept, but sum and prod of bool are counted in int64. NaN on one
        rank is NaN on all.

    Raises:
        MismatchError: trees, shapes, dtypes or ``op`` differ between ranks (on every rank, before
            data moves).
        InputError: ``op`` is unknown, or an integer result does not fit into its dtype (on every
            rank).
        InputTypeError: a leaf cannot be sent, or has no such reduction, such as the maximum of
            complex numbers (on every rank).

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
    reduced = zip(_reduce(comm, mine, wide, op), mine.tensors, strict=True)
    return mine.rebuild(_narrowed(new, old.dtype, op, comm.rank) for new, old in reduced)


@one_call
def mean(tree: T, weight: float | Tensor, *, comm: Communicator | None = None, name: str = "") -> T:
    """Return the mean of every leaf over all ranks, each rank counted by its weight.

    mean = Σᵣ wᵣ·xᵣ / Σᵣ wᵣ, summed in float64. With the number of samples as ``weight`` this is the
    mean over all samples, however unevenly the ranks share them. A rank without data passes weight
    0; its values do not count, even if they are NaN, as the mean of nothing is.

    Args:
        tree: tensors or numbers of equal shapes and dtypes on all ranks.
        weight: a number or a tensor of one element, finite and not negative; the sum over ranks
            must be positive.
        comm: default the current communicator.
        name: shown in errors.

    Returns:
        the same tree; floating and complex leaves keep their dtype, integer and bool leaves become
        float64.

    Raises:
        MismatchError: trees, shapes or dtypes differ between ranks (on every rank, before data
            moves).
        InputError: a weight is negative, not finite or not one number, or all weights are zero (on
            every rank).
        InputTypeError: a leaf is neither a dense tensor nor a number (on every rank).

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
    means = []
    for each, total, old in zip(sums, totals, mine.tensors, strict=False):
        kept = old.is_floating_point() or old.is_complex()
        means.append((each / total).to(old.dtype if kept else torch.float64))
    return mine.rebuild(means)


def _reduce(
    comm: Communicator, mine: Prepared[Any], tensors: Sequence[Tensor], op: Op
) -> list[Tensor]:
    """Agree, then reduce tensors of one ``op``; results on ``comm.device``."""
    run, where = mine.pack(comm, tensors)
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


def meet(op: str, name: str = "", *, comm: Communicator, problem: Problem | None = None) -> None:
    """Return once every rank is here for the same; raise on all of them what one must refuse."""
    agree_on(Header(op, name, site=call_site(), problem=problem), comm=comm)


def barrier(*, comm: Communicator | None = None, name: str = "") -> None:
    """Return once every rank is here; over a layout, every rank of its mesh.

    Args:
        comm: default the current communicator.
        name: shown in errors.

    Raises:
        MismatchError: another rank is in another call (on every rank).
        DivergedError: a rank waits elsewhere, or has returned.
        PeerLostError: a rank has failed or ended.

    >>> barrier()
    """
    meet("barrier", name, comm=chosen(comm).whole)


@one_call
def all_true(flag: bool, *, comm: Communicator | None = None, name: str = "") -> bool:
    """Return True if ``flag`` is true on every rank; the same answer on all.

    Args:
        flag: anything that is true or false, also a tensor of one element.
        comm: default the current communicator.
        name: shown in errors.

    Raises:
        InputTypeError: a flag is None or a text (on every rank).
        MismatchError: another rank is in another call (on every rank).

    >>> run(2, lambda comm: all_true(comm.rank == 0, comm=comm))
    [False, False]
    """
    return bool(_flags(comm, "all_true", flag, name).all())


@one_call
def any_true(flag: bool, *, comm: Communicator | None = None, name: str = "") -> bool:
    """Return True if ``flag`` is true on some rank; the same answer on all.

    Args:
        flag: anything that is true or false, also a tensor of one element.
        comm: default the current communicator.
        name: shown in errors.

    Raises:
        InputTypeError: a flag is None or a text (on every rank).
        MismatchError: another rank is in another call (on every rank).

    >>> run(2, lambda comm: any_true(comm.rank == 0, comm=comm))
    [True, True]
    """
    return bool(_flags(comm, "any_true", flag, name).any())


def _flags(comm: Communicator | None, op: str, flag: Any, name: str) -> Tensor:
    problem = None
    if isinstance(flag, str | bytes | None):
        what = f"the flag must be true or false, got a {type(flag).__name__}"
        problem = Problem("InputTypeError", what)
    comm = chosen(comm)
    return _gather_rows(prepare(op, name, bool(flag), comm, problem=problem), comm)[0]


def all_gather_object(
    obj: Any, *, allow_pickle: bool = False, comm: Communicator | None = None, name: str = ""
) -> list[Any]:
    """Return every rank's object, in rank order.

    An object is data: a number, string, bytes, None, dtype, tensor or NumPy array, or a list,
    tuple, set or dict of data. Tensors come back detached: those of the CPU on the CPU, others on
    the communicator's device.

    Args:
        obj: this rank's object.
        allow_pickle: take objects of any class too, by pickling them. Unpickling runs code that the
            sender chooses, so it is for ranks that you trust.
        comm: default the current communicator.
        name: shown in errors.

    Raises:
        InputTypeError: the object cannot be sent from some rank (on every rank).
        MismatchError: ranks differ in ``allow_pickle`` (on every rank).

    >>> run(2, lambda comm: all_gather_object(f"rank {comm.rank}", comm=comm))[0]
    ['rank 0', 'rank 1']
    """
    comm, site = chosen(comm), call_site()
    return gather_objects(obj, lambda x: x, name, site, comm=comm, allow_pickle=allow_pickle)


@one_call
def gather_objects(
    obj: Any,
    read: Callable[[Any], Any],
    name: str,
    site: Site | None = None,
    *,
    comm: Communicator,
    allow_pickle: bool = False,
    op: str = "all_gather_object",
) -> list[Any]:
    """Do what :func:`all_gather_object` does, for a caller of ours.

    ``read`` makes of an object of a peer what the caller needs; it raises if that is malformed.
    """
    data, problem = from_bytes(b"").to(comm.device), None
    try:
        data = serialize(obj, allow_pickle=allow_pickle).to(comm.device)
    except InputTypeError as error:
        problem = Problem.of(error)
    header = Header(op, name, site=site, problem=problem, allow_pickle=allow_pickle)
    if comm.wants_proof:
        comm.witness(header.content(), {"the object": data})
    objects = []
    for rank, run in enumerate(exchange_alike(comm, header, data)):
        with reading("its object", rank):
            objects.append(read(deserialize(run, allow_pickle=allow_pickle)))
    return objects


def gather_messages(comm: Communicator, message: M, header: Header, what: str) -> list[M]:
    """Return every rank's message of one type, in rank order; ``what``: errors call it so."""
    runs = exchange_alike(comm, header, from_bytes(encode(message)).to(comm.device))
    return [decode(type(message), to_bytes(run), what, r) for r, run in enumerate(runs)]
