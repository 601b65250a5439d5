"""Gathering equal shapes, and the way back for gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.exchange import exchange_alike
from distmetrics.collectives.manifest import Problem
from distmetrics.collectives.pack import pack, unpack
from distmetrics.collectives.prepare import Prepared, prepare
from distmetrics.collectives.reduce import all_reduce
from distmetrics.comm.base import Communicator
from distmetrics.comm.current import chosen
from distmetrics.comm.one_call import as_one_call

_CAT_INSTEAD = "call all_gather_cat, which joins uneven shards along dim 0."


def gather_rows(comm: Communicator, mine: Prepared) -> list[Tensor]:
    """Return each leaf of all ranks, stacked, on the device of this rank's leaf."""
    mine.testify(comm)
    data = pack(mine.tensors, mine.layout, comm.device)
    runs = exchange_alike(comm, mine.manifest, data, _CAT_INSTEAD)
    per_rank = [unpack(run, mine.layout) for run in runs]
    rows = []
    for leaves, own in zip(zip(*per_rank, strict=True), mine.tensors, strict=True):
        rows.append(torch.stack(leaves).to(own.device))
    return rows


@as_one_call
def meet(
    op: str, name: str = "", *, comm: Communicator | None = None, problem: Problem | None = None
) -> None:
    """Return once every rank is here for the same; raise on all of them what one must refuse."""
    gather_rows(chosen(comm), prepare(op, name, (), problem=problem))


def one_way(comm: Communicator) -> Problem | None:
    """Return why gradients cannot flow back over a communicator, if they cannot."""
    if not getattr(comm, "hands_over", False):
        return None
    return Problem(
        "InputError",
        "gradients cannot flow back over a layout that gives some ranks the result of others",
        "gather over a layout of the ranks with values alone, or leave sync_grads out.",
    )


def gather_with_gradients(comm: Communicator, mine: Prepared) -> list[Tensor]:
    """Like :func:`gather_rows`, but gradients flow back to the ranks that sent."""
    return list(_Gather.apply(comm, mine, *mine.tensors))  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    """Gather; backward, each rank's gradient is the sum of all ranks' gradients of its row."""

    @staticmethod
    def forward(
        ctx: Any, comm: Communicator, mine: Prepared, *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.comm, ctx.name = comm, mine.manifest.name
        rows = gather_rows(comm, mine)
        ctx.smooth = []  # the places of the leaves that have gradients
        for place, row in enumerate(rows):
            if row.is_floating_point() or row.is_complex():
                ctx.smooth.append(place)
        others = [row for place, row in enumerate(rows) if place not in ctx.smooth]
        ctx.mark_non_differentiable(*others)
        return tuple(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        mine: list[Tensor | None] = [None] * len(grads)
        if ctx.smooth:
            sent = [grads[place] for place in ctx.smooth]
            summed = _SumOfRows.apply(ctx.comm, ctx.name, *sent)  # type: ignore[no-untyped-call]
            for place, grad in zip(ctx.smooth, summed, strict=True):
                mine[place] = grad
        return (None, None, *mine)


class _SumOfRows(torch.autograd.Function):
    """Sum this rank's row over all ranks; backward, gather: so second derivatives are right too."""

    @staticmethod
    def forward(ctx: Any, comm: Communicator, name: str, *stacks: Tensor) -> tuple[Tensor, ...]:
        ctx.comm, ctx.name = comm, name
        summed = all_reduce(list(stacks), "sum", comm=comm, name=f"{name} (gradients)".strip())
        return tuple(stack[comm.rank].clone() for stack in summed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        name = f"{ctx.name} (gradients of gradients)".strip()
        mine = prepare("all_gather with gradients", name, list(grads))
        return (None, None, *gather_with_gradients(ctx.comm, mine))
