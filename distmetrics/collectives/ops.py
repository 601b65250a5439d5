"""Collectives over trees of tensors, agreed by all ranks before data moves.

Every function takes keyword-only ``comm`` (default: the communicator in force) and ``name`` (shown
in errors). Each must be called by every rank; what ranks disagree on is a
:class:`~distmetrics.errors.MismatchError` on all of them. Calls of two threads on one communicator
must not overlap: the second is refused. An exception that ends a call on one rank alone breaks the
communicator: every later call on it raises, on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distmetrics.call_site import call_site
from distmetrics.collectives.buckets import from_bytes, layout, to_bytes, unpack
from distmetrics.collectives.dtensor import rows_of
from distmetrics.collectives.exchange import exchange, exchange_alike, inline_capacity
from distmetrics.collectives.header import Header, Prepared, Problem, agree, prepare
from distmetrics.collectives.reduce import all_reduce
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.call_lock import one_call
from distmetrics.comm.communicator import Communicator, chosen
from distmetrics.errors import InputTypeError, Site
from distmetrics.message import Message, decode, encode, reading


def _gather_rows(mine: Prepared, comm: Communicator) -> list[Tensor]:
    """Return each leaf of all ranks, stacked, on the device of this rank's leaf."""
    where = layout(mine.tensors)
    runs = exchange_alike(comm, mine.header, mine.pack(comm, where))
    per_rank = [unpack(run, where) for run in runs]
    rows = []
    for leaves, own in zip(zip(*per_rank, strict=True), mine.tensors, strict=True):
        rows.append(torch.stack(leaves).to(own.device))
    return rows


@one_call
def meet(
    op: str, name: str = "", *, comm: Communicator | None = None, problem: Problem | None = None
) -> None:
    """Return once every rank is here for the same; raise on all of them what one must refuse."""
    comm = chosen(comm)
    _gather_rows(prepare(op, name, (), comm, problem=problem), comm)


class _Gather(torch.autograd.Function):
    """Gather; backward, each rank's gradient is the sum of all ranks' gradients of its row."""

    @staticmethod
    def forward(
        ctx: Any, comm: Communicator, mine: Prepared, *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.comm, ctx.name = comm, mine.header.name
        rows = _gather_rows(mine, comm)
        ctx.smooth = [row.is_floating_point() or row.is_complex() for row in rows]
        return tuple(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sent = [grad for grad, is_smooth in zip(grads, ctx.smooth, strict=True) if is_smooth]
        name = f"{ctx.name} (gradients)".strip()
        stacks = iter(all_reduce(sent, "sum", comm=ctx.comm, name=name))
        rank = ctx.comm.rank
        mine = [next(stacks)[rank].clone() if is_smooth else None for is_smooth in ctx.smooth]
        return (None, None, *mine)


T = TypeVar("T")
M = TypeVar("M", bound=Message)


@one_call
def all_gather(
    tree: T, *, sync_grads: bool = False, comm: Communicator | None = None, name: str = ""
) -> T:
    """Return every rank's tree, stacked in rank order: a leaf becomes ``[world_size, *shape]``.

    Args:
        tree: tensors or numbers, any dtype, of equal shapes on all ranks. Numbers become 0-dim
            tensors. Of DTensors, here and below, see ``docs/layouts.md``.
        sync_grads: let gradients flow back: the gradient of this rank's leaf is the sum, over all
            ranks, of the gradients of its row. All ranks must then run backward through the result,
            once: there are no second derivatives.
        comm: default the communicator in force.
        name: shown in errors.

    Returns: the same tree, leaves on the devices where they were; detached unless ``sync_grads``.

    Raises:
        MismatchError: trees, dtypes or shapes differ between ranks (on every rank, before data
            moves).
        InputTypeError: a leaf is no dense tensor and no number (on every rank).
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
    result: T = mine.spec.unflatten(rows)
    return result


@one_call
def all_gather_cat(tree: T, *, comm: Communicator | None = None, name: str = "") -> T:
    """Return every rank's tree, joined along dim 0 in rank order; uneven and empty ranks allowed.

    Args:
        tree: tensors of equal dtype and equal shape but for dim 0; 0-dim leaves count as one row. A
            rank without data passes a tensor of 0 rows, or simply ``torch.empty(0)``, whatever the
            others' dtype and shape.
        comm: default the communicator in force.
        name: shown in errors.

    Returns: the same tree with leaves ``[sum of rows, *rest]``, on the devices where they were.

    Raises:
        MismatchError: trees, dtypes or trailing shapes differ (on every rank, before data moves).
        InputTypeError: a leaf is no dense tensor and no number (on every rank).

    >>> run(3, lambda comm: all_gather_cat(torch.arange(comm.rank), comm=comm))[0]
    tensor([0, 0, 1])
    """
    comm = chosen(comm)
    mine = prepare("all_gather_cat", name, tree, comm, take=rows_of)
    met = exchange(comm, mine.header, mine.pack(comm, layout(mine.tensors)))
    headers = met.headers()
    agree(headers, comm.rank, first_axis=1)
    per_rank = []
    for header, run in zip(headers, met.move(), strict=True):
        per_rank.append(unpack(run, layout(header.leaves)))
    leaves = []
    for parts, old in zip(zip(*per_rank, strict=True), mine.tensors, strict=True):
        rows = [part for part in parts if part.shape != (0,)] or [parts[0]]
        with reading("rows to be joined"):
            leaves.append(torch.cat(rows).to(old.device))
    result: T = mine.spec.unflatten(leaves)
    return result


@one_call
def broadcast(tree: T, src: int = 0, *, comm: Communicator | None = None, name: str = "") -> T:
    """Return rank ``src``'s tree, on every rank.

    Args:
        tree: tensors or numbers of equal shapes and dtypes on all ranks; only ``src``'s values
            count.
        src: the rank that has the values.
        comm: default the communicator in force.
        name: shown in errors.

    Raises:
        MismatchError: trees, shapes, dtypes or ``src`` differ between ranks.
        InputError: there is no rank ``src``; InputTypeError: a leaf cannot be sent (each on every
            rank).

    >>> run(2, lambda comm: broadcast(torch.tensor(comm.rank), src=1, comm=comm))
    [tensor(1), tensor(1)]
    """
    comm = chosen(comm)
    problem = None
    if not isinstance(src, int) or not 0 <= src < comm.world_size:
        what = f"there is no rank {src!r} in a world of {comm.world_size}"
        problem = Problem("InputError", what)
    mine = prepare(f"broadcast from rank {src}", name, tree, comm, problem=problem)
    where = layout(mine.tensors)
    data = mine.pack(comm, where)
    fits = where.nbytes <= inline_capacity(comm.world_size)
    runs = exchange_alike(comm, mine.header, data if fits and comm.rank == src else data[:0])
    received = unpack(runs[src] if fits else comm.broadcast(data, src), where)
    copies = []
    for new, old in zip(received, mine.tensors, strict=True):
        copies.append(new.to(old.device, copy=True))
    result: T = mine.spec.unflatten(copies)
    return result


def barrier(*, comm: Communicator | None = None, name: str = "") -> None:
    """Return once every rank is here; over a layout, every rank of its mesh.

    >>> barrier()
    """
    meet("barrier", name, comm=chosen(comm).whole)


@one_call
def all_true(flag: bool, *, comm: Communicator | None = None, name: str = "") -> bool:
    """Return True if ``flag`` is true on every rank; the same answer on all.

    >>> run(2, lambda comm: all_true(comm.rank == 0, comm=comm))
    [False, False]
    """
    return bool(_flags(comm, "all_true", flag, name).all())


@one_call
def any_true(flag: bool, *, comm: Communicator | None = None, name: str = "") -> bool:
    """Return True if ``flag`` is true on some rank; the same answer on all.

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


@one_call
def all_gather_object(
    obj: Any, *, allow_pickle: bool = False, comm: Communicator | None = None, name: str = ""
) -> list[Any]:
    """Return every rank's object, in rank order.

    What travels is data: numbers, strings, bytes, None, dtypes, tensors, NumPy arrays, and lists,
    tuples, sets and dicts of such. Tensors come back detached, on the CPU where they were there,
    else on the communicator's device.

    Args:
        obj: this rank's.
        allow_pickle: take objects of any class too, by pickling them. Unpickling runs code that the
            sender chooses, so it is for ranks that you trust.
        comm: default the communicator in force.
        name: shown in errors.

    Raises:
        InputTypeError: the object cannot be sent from some rank (on every rank).
        MismatchError: ranks differ in ``allow_pickle``.

    >>> run(2, lambda comm: all_gather_object(f"rank {comm.rank}", comm=comm))[0]
    ['rank 0', 'rank 1']
    """
    comm = chosen(comm)
    return gather_objects(obj, None, name, call_site(), comm=comm, allow_pickle=allow_pickle)


@one_call
def gather_objects(
    obj: Any,
    read: Callable[[Any], Any] | None,
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
    except Exception as error:
        if not allow_pickle:
            raise
        # Any class may raise anything from its own pickling.
        what = f"a {type(obj).__name__} cannot be pickled: {error}"
        problem = Problem("InputTypeError", what)
    header = Header(op, name, site=site, problem=problem, allow_pickle=allow_pickle)
    if comm.wants_proof:
        comm.witness(header.content(), {"the object": data})
    objects = []
    for rank, run in enumerate(exchange_alike(comm, header, data)):
        with reading("its object", rank):
            theirs = deserialize(run, allow_pickle=allow_pickle)
            objects.append(theirs if read is None else read(theirs))
    return objects


def gather_messages(comm: Communicator, message: M, header: Header, what: str) -> list[M]:
    """Return every rank's message of one type, in rank order; ``what``: errors call it so."""
    data = from_bytes(encode(message)).to(comm.device)
    runs = exchange_alike(comm, header, data)
    return [decode(type(message), to_bytes(run), what, r) for r, run in enumerate(runs)]
