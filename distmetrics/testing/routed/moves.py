"""Calls that ask, wait, or move tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from distmetrics.comm.base import Communicator
from distmetrics.testing.routed.base import (
    Finished,
    call,
    check_alike,
    check_contiguous,
    check_group,
    check_list_at,
    check_outputs,
    end,
    fill,
    refusal,
    root_rank,
    split,
    stands_for,
)


@stands_for("is_initialized")
def _is_initialized(_comm: Communicator) -> bool:
    return True


@stands_for("get_rank")
def _get_rank(comm: Communicator, group: Any = None) -> int:
    check_group("get_rank", group)
    return comm.rank


@stands_for("get_world_size")
def _get_world_size(comm: Communicator, group: Any = None) -> int:
    check_group("get_world_size", group)
    return comm.world_size


@stands_for("get_backend")
def _get_backend(_comm: Communicator, group: Any = None) -> str:
    check_group("get_backend", group)
    return dist.Backend("gloo")


@stands_for("get_process_group_ranks")
def _get_process_group_ranks(comm: Communicator, group: Any = None) -> list[int]:
    check_group("get_process_group_ranks", group)
    return list(range(comm.world_size))


@stands_for("get_global_rank")
def _get_global_rank(_comm: Communicator, group: Any, group_rank: int) -> int:
    check_group("get_global_rank", group)
    return group_rank


@stands_for("get_group_rank")
def _get_group_rank(_comm: Communicator, group: Any, global_rank: int) -> int:
    check_group("get_group_rank", group)
    return global_rank


@stands_for("barrier")
def _barrier(
    comm: Communicator,
    group: Any = None,
    async_op: bool = False,
    device_ids: Any = None,
    timeout: Any = None,
) -> Finished | None:
    with call("barrier", group):
        comm.barrier()
    return end(async_op)


@stands_for("monitored_barrier")
def _monitored_barrier(
    comm: Communicator, group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
) -> None:
    with call("monitored_barrier", group):
        comm.barrier()


@stands_for("all_gather")
def _all_gather(
    comm: Communicator, tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False
) -> Finished | None:
    name = "all_gather"
    with call(name, group, tensor):
        check_outputs(name, "tensor_list", tensor_list, tensor, comm.world_size)
        fill(tensor_list, comm.all_gather(tensor))
    return end(async_op, *tensor_list)


@stands_for("all_gather_into_tensor", "all_gather_single")
def _all_gather_into_tensor(
    comm: Communicator,
    output_tensor: Any,
    input_tensor: Any,
    group: Any = None,
    async_op: bool = False,
) -> Finished | None:
    name = "all_gather_into_tensor"
    with call(name, group, input_tensor, output_tensor):
        rows_of_one = input_tensor.shape[0] if input_tensor.ndim else 1
        wanted = (comm.world_size * rows_of_one, *input_tensor.shape[1:])
        check_alike(name, "output_tensor", output_tensor, input_tensor.dtype, wanted)
        rows = comm.all_gather(input_tensor)
        fill([output_tensor], [torch.cat(rows) if input_tensor.ndim else torch.stack(rows)])
    return end(async_op, output_tensor)


@stands_for("gather")
def _gather(
    comm: Communicator,
    tensor: Any,
    gather_list: Any = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Finished | None:
    name = "gather"
    root = root_rank(comm, name, "dst", dst, group_dst, default=0)
    with call(name, group, tensor, exact=(name, root)):
        check_list_at(name, "gather_list", gather_list, "destination", is_root=comm.rank == root)
        if tensor.is_complex():
            raise refusal(name, f"gloo cannot gather {tensor.dtype}")
        if gather_list:
            check_outputs(name, "gather_list", gather_list, tensor, comm.world_size)
        rows = comm.all_gather(tensor)
        if gather_list:
            fill(gather_list, rows)
    return end(async_op, *(gather_list or ()))


@stands_for("scatter")
def _scatter(
    comm: Communicator,
    tensor: Any,
    scatter_list: Any = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Finished | None:
    name = "scatter"
    root = root_rank(comm, name, "src", src, group_src, default=0)
    with call(name, group, tensor, exact=(name, root)):
        check_contiguous(name, tensor)
        check_list_at(name, "scatter_list", scatter_list, "source", is_root=comm.rank == root)
        if scatter_list:
            check_outputs(name, "scatter_list", scatter_list, tensor, comm.world_size)
        parts = scatter_list or [tensor] * comm.world_size
        fill([tensor], [comm.all_to_all(parts)[root]])
    return end(async_op, tensor)


@stands_for("broadcast")
def _broadcast(
    comm: Communicator,
    tensor: Any,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Finished | None:
    name = "broadcast"
    root = root_rank(comm, name, "src", src, group_src)
    with call(name, group, tensor):
        check_contiguous(name, tensor)
        fill([tensor], [comm.broadcast(tensor, root)])
    return end(async_op, tensor)


@stands_for("all_to_all")
def _all_to_all(
    comm: Communicator,
    output_tensor_list: Any,
    input_tensor_list: Any,
    group: Any = None,
    async_op: bool = False,
) -> Finished | None:
    name = "all_to_all"
    with call(name, group, *input_tensor_list):
        check_outputs(
            name, "input_tensor_list", input_tensor_list, input_tensor_list[0], comm.world_size
        )
        check_outputs(
            name, "output_tensor_list", output_tensor_list, input_tensor_list[0], comm.world_size
        )
        fill(output_tensor_list, comm.all_to_all(input_tensor_list))
    return end(async_op, *output_tensor_list)


@stands_for("all_to_all_single")
def _all_to_all_single(
    comm: Communicator,
    output: Any,
    input: Any,  # noqa: A002  (torch's name)
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Finished | None:
    name = "all_to_all_single"
    with call(name, group, input, output):
        if len({*(output_split_sizes or ()), *(input_split_sizes or ())}) > 1:
            raise refusal(name, "splits of different sizes are not supported in a world of threads")
        check_contiguous(name, output, input)
        check_alike(name, "output", output, input.dtype, input.shape)
        fill([output], [torch.cat(comm.all_to_all(split(name, "input", input, comm.world_size)))])
    return end(async_op, output)
