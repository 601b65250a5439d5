"""Calls that send pickled objects."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch import Tensor

from distmetrics.comm.base import Communicator
from distmetrics.testing.routed.base import call, check_list_at, refusal, root_rank, stands_for

_NOTHING = torch.empty(0, dtype=torch.uint8)  # torch.cat of no frames at all


@stands_for("all_gather_object")
def _all_gather_object(
    comm: Communicator, object_list: list[Any], obj: Any, group: Any = None
) -> None:
    with call("all_gather_object", group):
        for rank, value in enumerate(_gathered_objects(comm, obj)):
            object_list[rank] = value


@stands_for("gather_object")
def _gather_object(
    comm: Communicator,
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
) -> None:
    name = "gather_object"
    root = root_rank(comm, name, "dst", dst, group_dst, default=0)
    with call(name, group, exact=(name, root)):
        check_list_at(
            name, "object_gather_list", object_gather_list, "destination", is_root=comm.rank == root
        )
        values = _gathered_objects(comm, obj)
        for rank, value in enumerate(values if object_gather_list else ()):
            assert object_gather_list is not None
            object_gather_list[rank] = value


@stands_for("broadcast_object_list")
def _broadcast_object_list(
    comm: Communicator,
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    name = "broadcast_object_list"
    root = root_rank(comm, name, "src", src, group_src)
    with call(name, group):
        if comm.rank == root:
            frames = [_frame(value) for value in object_list]
            comm.broadcast(
                torch.tensor([frame.numel() for frame in frames], dtype=torch.int64), root
            )
            comm.broadcast(torch.cat([*frames, _NOTHING]), root)
            return
        sizes = comm.broadcast(torch.zeros(len(object_list), dtype=torch.int64), root).tolist()
        received = comm.broadcast(torch.empty(sum(sizes), dtype=torch.uint8), root)
        for place, frame in enumerate(torch.split(received, sizes)):
            object_list[place] = _object(frame)


@stands_for("scatter_object_list")
def _scatter_object_list(
    comm: Communicator,
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
) -> None:
    name = "scatter_object_list"
    root = root_rank(comm, name, "src", src, group_src, default=0)
    with call(name, group, exact=(name, root)):
        if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
            raise refusal(
                name, "scatter_object_output_list must be a list with room for one object"
            )
        given = scatter_object_input_list if comm.rank == root else None
        if comm.rank == root and (given is None or len(given) != comm.world_size):
            raise refusal(
                name,
                f"scatter_object_input_list must hold one object for each of {comm.world_size} "
                "ranks",
            )
        everything = _gathered_objects(comm, given)[root]
        scatter_object_output_list[0] = everything[comm.rank]


def _gathered_objects(comm: Communicator, obj: Any) -> list[Any]:
    """As torch does it: sizes first, then the pickles, padded to the longest; each rank gets
    copies.
    """
    frame = _frame(obj)
    sizes = [int(size) for size in comm.all_gather(torch.tensor([frame.numel()]))]
    padded = torch.nn.functional.pad(frame, (0, max(sizes) - frame.numel()))
    rows = comm.all_gather(padded)
    return [_object(row[:size]) for row, size in zip(rows, sizes, strict=True)]


def _frame(obj: Any) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)


def _object(frame: Tensor) -> Any:
    return pickle.loads(frame.numpy().tobytes())  # noqa: S301  (bytes of another thread of this process)
