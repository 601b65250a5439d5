"""Gathering equal shapes, and the way back for gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.exchange import exchange
from distmetrics.collectives.manifest import check
from distmetrics.collectives.pack import pack, unpack
from distmetrics.collectives.prepare import Prepared, prepare
from distmetrics.collectives.reduce import all_reduce
from distmetrics.comm.base import Communicator

_CAT_INSTEAD = "call all_gather_cat, which joins uneven shards along dim 0."


def gather_runs(comm: Communicator, mine: Prepared, do: str = "") -> list[Tensor]:
    """Return every rank's packed tensors; ``do`` is the advice for shapes that differ."""
    data = pack(mine.tensors, mine.layout, comm.device)
    agreed = partial(check, rank=comm.rank, do=do)
    return [inline for inline, _ in exchange(comm, mine.manifest, data, data.new_empty(0), agreed)]


def gather_rows(comm: Communicator, mine: Prepared) -> list[Tensor]:
    """Return each leaf of all ranks, stacked, on the device of this rank's leaf."""
    per_rank = [unpack(run, mine.layout) for run in gather_runs(comm, mine, _CAT_INSTEAD)]
    rows = [torch.stack(leaves) for leaves in zip(*per_rank, strict=True)]
    return [row.to(leaf.device) for row, leaf in zip(rows, mine.tensors, strict=True)]


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
        ctx.smooth = [row.is_floating_point() or row.is_complex() for row in rows]
        ctx.mark_non_differentiable(
            *(row for row, smooth in zip(rows, ctx.smooth, strict=True) if not smooth)
        )
        return tuple(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sent = [grad for grad, smooth in zip(grads, ctx.smooth, strict=True) if smooth]
        summed = iter(_SumOfRows.apply(ctx.comm, ctx.name, *sent) if sent else ())  # type: ignore[no-untyped-call]
        mine = [next(summed) if smooth else None for smooth in ctx.smooth]
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
        mine = prepare(
            "all_gather with gradients", f"{ctx.name} (gradients of gradients)".strip(), list(grads)
        )
        return (None, None, *gather_with_gradients(ctx.comm, mine))
