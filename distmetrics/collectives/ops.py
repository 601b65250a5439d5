"""Collectives over trees of tensors, agreed by all ranks before data moves.

Every function takes keyword-only ``comm`` (default: the communicator in force) and ``name`` (shown
in errors). Each must be called by every rank; what ranks disagree on is a
:class:`~distmetrics.errors.MismatchError` on all of them. Calls of two threads on one communicator
must not overlap: the second is refused. A call that an exception ends on one rank alone is finished
there before the next, which raises on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from distmetrics.collectives.dtensors import rows_of
from distmetrics.collectives.exchange import exchange, exchange_alike, inline_capacity
from distmetrics.collectives.gather import gather_rows, gather_with_gradients, meet, one_way
from distmetrics.collectives.manifest import Manifest, Problem, agree, testify
from distmetrics.collectives.pack import LeafSpec, dtype_of, layout, pack, unpack
from distmetrics.collectives.prepare import prepare
from distmetrics.collectives.reading import is_raised_by_user, reading
from distmetrics.collectives.serialize import deserialize, serialize
from distmetrics.comm.base import Communicator
from distmetrics.comm.current import chosen, whole_of
from distmetrics.comm.one_call import as_one_call, in_one_call
from distmetrics.comm.sites import call_site
from distmetrics.errors import InputTypeError, Site

T = TypeVar("T")


@as_one_call
def all_gather(
    tree: T, *, sync_grads: bool = False, comm: Communicator | None = None, name: str = ""
) -> T:
    """Return every rank's tree, stacked in rank order: a leaf becomes ``[world_size, *shape]``.

    Args:
        tree: tensors or numbers, any dtype, of equal shapes on all ranks. Numbers become 0-dim
            tensors. Of DTensors, here and below, see ``docs/layouts.md``.
        sync_grads: let gradients flow back: the gradient of this rank's leaf is the sum, over all
            ranks, of the gradients of its row. All ranks must then run backward through the result.
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
    op = "all_gather with gradients" if sync_grads else "all_gather"
    problem = one_way(comm) if sync_grads else None
    mine = prepare(op, name, tree, comm=comm, problem=problem)
    gather = gather_with_gradients if sync_grads and mine.tensors else gather_rows
    result: T = mine.spec.unflatten(gather(comm, mine))
    return result


@as_one_call
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
    mine = prepare("all_gather_cat", name, tree, comm=comm, take=rows_of, at_least_1d=True)
    mine.testify(comm)
    data = pack(mine.tensors, mine.layout, comm.device)

    def check_columns(blobs: Sequence[bytes]) -> list[Manifest]:
        manifests = [Manifest.decode(blob, rank) for rank, blob in enumerate(blobs)]
        agree(_fill_in(manifests), comm.rank, first_axis=1)
        return manifests

    sent, runs = exchange(comm, mine.manifest, data, data[:0], check_columns)
    per_rank = []
    for manifest, (run, _) in zip(sent, runs, strict=True):
        per_rank.append(unpack(run, layout(manifest.leaves)))
    leaves = []
    for parts, old in zip(zip(*per_rank, strict=True), mine.tensors, strict=True):
        rows = [part for part in parts if part.shape != (0,)]
        rows = rows or [max(parts, key=_weight)]
        with reading("rows to be joined"):
            leaves.append(torch.cat(rows).to(old.device))
    result: T = mine.spec.unflatten(leaves)
    return result


def _fill_in(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Give a rank's ``torch.empty(0)`` the dtype and trailing shape of the ranks that have data."""
    if len({len(manifest.leaves) for manifest in manifests}) > 1:
        return list(manifests)  # the trees differ, which is for agree() to say
    columns = zip(*(manifest.leaves for manifest in manifests), strict=True)
    known = [max(column, key=_weight) for column in columns]
    filled = []
    for manifest in manifests:
        leaves = []
        for leaf, like in zip(manifest.leaves, known, strict=True):
            if leaf.shape == (0,):
                leaf = like._replace(shape=(0, *like.shape[1:]))
            leaves.append(leaf)
        filled.append(replace(manifest, leaves=tuple(leaves)))
    return filled


def _weight(leaf: LeafSpec | Tensor) -> tuple[bool, bool]:
    """Rank what leaves say of dtype and shape: one with rows most, then one with a chosen dtype."""
    dtype = leaf.dtype if isinstance(leaf, Tensor) else dtype_of(leaf.dtype)
    return leaf.shape != (0,), dtype != torch.get_default_dtype()


@as_one_call
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
    problem = _source_problem(src, comm.world_size)
    mine = prepare(f"broadcast from rank {src}", name, tree, comm=comm, problem=problem)
    mine.testify(comm)
    data = pack(mine.tensors, mine.layout, comm.device)
    fits = mine.layout.nbytes <= inline_capacity(comm.world_size)

    def rounds() -> Tensor:
        runs = exchange_alike(comm, mine.manifest, data if fits and comm.rank == src else data[:0])
        return runs[src] if fits else comm.broadcast(data, src)

    received = unpack(in_one_call(comm, mine.manifest.call, rounds), mine.layout)
    copies = []
    for new, old in zip(received, mine.tensors, strict=True):
        copies.append(new.to(old.device, copy=True))
    result: T = mine.spec.unflatten(copies)
    return result


def _source_problem(src: Any, world_size: int) -> Problem | None:
    if not isinstance(src, int):
        return Problem("InputTypeError", f"the source must be a rank, got a {type(src).__name__}")
    if 0 <= src < world_size:
        return None
    return Problem("InputError", f"there is no rank {src} in a world of {world_size}")


def barrier(*, comm: Communicator | None = None, name: str = "") -> None:
    """Return once every rank is here; over a layout, every rank of its mesh.

    >>> barrier()
    """
    meet("barrier", name, comm=whole_of(chosen(comm)))


@as_one_call
def all_true(flag: bool, *, comm: Communicator | None = None, name: str = "") -> bool:
    """Return True if ``flag`` is true on every rank; the same answer on all.

    >>> run(2, lambda comm: all_true(comm.rank == 0, comm=comm))
    [False, False]
    """
    return bool(_flags(comm, "all_true", flag, name).all())


@as_one_call
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
    return gather_rows(chosen(comm), prepare(op, name, bool(flag), problem=problem))[0]


@as_one_call
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
    comm, site = chosen(comm), call_site()
    return gather_objects(obj, lambda theirs: theirs, comm, name, site, allow_pickle=allow_pickle)


def gather_objects(
    obj: Any,
    read: Callable[[Any], T],
    comm: Communicator,
    name: str,
    site: Site | None = None,
    *,
    told: Site | None = None,
    allow_pickle: bool = False,
    op: str = "all_gather_object",
    problem: Problem | None = None,
) -> list[T]:
    """Do what :func:`all_gather_object` does, for a caller of ours.

    Args:
        obj: to gather.
        read: makes of an object of a peer what the caller needs, or raises anything.
        comm: who talks.
        name: of the call.
        site: the user's line, as ranks compare it.
        told: the line that reports show, where another one has asked for the call.
        allow_pickle: see :func:`all_gather_object`.
        op: the name of the operation.
        problem: why this rank cannot make the call, if it cannot.
    """
    data = torch.empty(0, dtype=torch.uint8, device=comm.device)
    try:
        data = serialize(obj, allow_pickle=allow_pickle).to(comm.device)
    except InputTypeError as error:
        problem = Problem.of(error)
    except Exception as error:  # any class may raise anything from its own pickling
        if is_raised_by_user(error) and not allow_pickle:  # by the handler of a signal
            raise
        what = f"a {type(obj).__name__} cannot be pickled: {error}"
        problem = Problem("InputTypeError", what)
    manifest = Manifest(
        op,
        name,
        site=site,
        problem=problem,
        reported_site=told,
        allow_pickle=allow_pickle,
    )
    testify(comm, manifest, {"the object": data})
    result = []
    for rank, run in enumerate(exchange_alike(comm, manifest, data)):
        with reading("its object", rank):
            theirs = deserialize(run, allow_pickle=allow_pickle, accelerator=comm.device)
            result.append(read(theirs))
    return result
