"""Calls that reduce."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics.comm.base import Communicator, Op, fold
from distmetrics.testing.routed.base import (
    Finished,
    call,
    check_contiguous,
    check_outputs,
    end,
    fill,
    refusal,
    root_rank,
    split,
    stands_for,
)

_OPS: dict[str, Op] = {"SUM": "sum", "PRODUCT": "prod", "MIN": "min", "MAX": "max", "AVG": "sum"}
_BITWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


@stands_for("all_reduce")
def _all_reduce(
    comm: Communicator,
    tensor: Any,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Finished | None:
    name = "all_reduce"
    with _reducing(name, group, tensor, op) as operation:
        fill([tensor], [_reduced(comm, tensor, operation)])
    return end(async_op, tensor)


@stands_for("reduce")
def _reduce(
    comm: Communicator,
    tensor: Any,
    dst: int | None = None,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Finished | None:
    name = "reduce"
    root = root_rank(comm, name, "dst", dst, group_dst)
    with _reducing(name, group, tensor, op, exact=(name, root)) as operation:
        result = _reduced(comm, tensor, operation)
        if comm.rank == root:  # elsewhere gloo leaves part of the sum behind; here the input stays
            fill([tensor], [result])
    return end(async_op, tensor)


@stands_for("reduce_scatter")
def _reduce_scatter(
    comm: Communicator,
    output: Any,
    input_list: Any,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Finished | None:
    name = "reduce_scatter"
    with _reducing(name, group, output, op, exact=(name,)) as operation:
        check_outputs(name, "input_list", input_list, output, comm.world_size)
        fill([output], [_folded(comm.all_to_all(input_list), operation)])
    return end(async_op, output)


@stands_for("reduce_scatter_tensor", "reduce_scatter_single")
def _reduce_scatter_tensor(
    comm: Communicator,
    output: Any,
    input: Any,  # noqa: A002  (torch's name)
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Finished | None:
    name = "reduce_scatter_tensor"
    with _reducing(name, group, output, op, exact=("reduce_scatter",)) as operation:
        parts = split(name, "input", input, comm.world_size)
        check_outputs(name, "input", parts, output, comm.world_size)
        fill([output], [_folded(comm.all_to_all(parts), operation)])
    return end(async_op, output)


@contextlib.contextmanager
def _reducing(
    name: str, group: Any, tensor: Any, op: Any, exact: tuple[Hashable, ...] = ()
) -> Iterator[str]:
    """Check a reduction; yield the name of its operation."""
    known = (*_OPS, *_BITWISE)
    operation = next(
        (known_op for known_op in known if op == getattr(dist.ReduceOp, known_op)), None
    )
    if operation is None:
        raise refusal(
            name, f"op={op!r} is not supported in a world of threads; supported: {', '.join(known)}"
        )
    with call(name, group, tensor, exact=(*exact, operation)):
        check_contiguous(name, tensor)
        integral = not tensor.is_floating_point() and not tensor.is_complex()
        if operation in _BITWISE and not integral:
            raise refusal(name, f"ReduceOp.{operation} needs integers, got {tensor.dtype}")
        if operation == "AVG" and integral:
            raise refusal(name, f"the mean of {tensor.dtype} is none; gloo refuses it")
        if operation not in ("SUM", "AVG") and tensor.is_complex():
            raise refusal(name, f"ReduceOp.{operation} does not exist for complex numbers")
        yield operation


def _reduced(comm: Communicator, tensor: Tensor, operation: str) -> Tensor:
    if operation in _BITWISE:
        return _folded(comm.all_gather(tensor), operation)
    total = comm.all_reduce(tensor, _OPS[operation])
    return total / comm.world_size if operation == "AVG" else total


def _folded(rows: Sequence[Tensor], operation: str) -> Tensor:
    if operation in _BITWISE:
        return functools.reduce(_BITWISE[operation], rows)
    total = fold(rows, _OPS[operation])
    return total / len(rows) if operation == "AVG" else total
