"""The table of what answers each function of ``torch.distributed``.

A function that moves tensors is a :class:`Move`: the arguments that it sends and receives, and an
exchange by the rank's communicator.
"""

import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from distmetrics.comm.communicator import Communicator, Finished, Op, fold
from distmetrics.testing.fake_torch_distributed import groups
from distmetrics.testing.fake_torch_distributed.request import BITWISE, Request

Answer = Callable[[Request], Any]
_OPS: dict[str, Op] = {
    "SUM": "sum",
    "PRODUCT": "prod",
    "MIN": "min",
    "MAX": "max",
    "AVG": "sum",
}
# What sends a part to each rank, and what receives a part from each rank.
_SCATTERING = ("scatter", "all_to_all", "reduce_scatter")
_GATHERING = ("gather", "all_gather", "all_to_all")
# The side that has one rank only, and which rank that is unless the caller says so.
_ROOTS = {
    "broadcast": ("src", None),
    "scatter": ("src", 0),
    "reduce": ("dst", None),
    "gather": ("dst", 0),
}


@dataclass(frozen=True, slots=True)
class Move:
    """A function that moves tensors.

    Attributes:
        kind: the exchange that it makes; ranks must agree on it.
        sends: the argument with what is sent: a tensor, or a part for each rank, which are the
            items of a list or the rows of a tensor.
        receives: the argument for what is received, alike.
    """

    kind: str
    sends: str
    receives: str

    def __call__(self, request: Request) -> Finished | None:
        """Make the call; return its handle if ``async_op`` asks for one."""
        side, default = _ROOTS.get(self.kind, ("", 0))
        root = request.root(side, default)
        if self.kind not in _GATHERING:
            request.check_contiguous(self.receives)
        for what in (self.sends, self.receives):
            if side and what.endswith("_list"):
                request.check_only_at(root, side, what)
        sent = self._sent(request)
        is_receiver = side != "dst" or request.comm.rank == root
        places = self._places(request, sent[0]) if is_receiver else []
        operation = request.operation(sent[0]) if "op" in request.arguments else ""
        if self.kind == "gather" and sent[0].is_complex():
            raise request.refusal(f"gloo cannot gather {sent[0].dtype}")
        with request.under_way(sent[0], self.kind, root, operation):
            received = _exchange(request.comm, self.kind, sent, root, operation)
            for place, tensor in zip(places, received, strict=is_receiver):
                place.copy_(tensor)
        return Finished() if request.arguments["async_op"] else None

    def _sent(self, request: Request) -> list[Tensor]:
        value = request.arguments[self.sends]
        if self.kind not in _SCATTERING:
            return [request.tensor(value)]
        if not self.sends.endswith("_list"):
            return request.rows(self.sends, request.tensor(value))
        if self.kind == "scatter" and not value:
            # This rank is not the source: it sends what nobody reads.
            return [request.arguments[self.receives]] * request.comm.world_size
        like = request.tensor(next(iter(value), None))
        return request.check_list(self.sends, value, like)

    def _places(self, request: Request, part: Tensor) -> list[Tensor]:
        """Return where to write what is received, tensors like ``part``."""
        value = request.arguments[self.receives]
        if self.kind not in _GATHERING:
            return [request.check_alike(self.receives, value, part.dtype, part.shape)]
        if self.receives.endswith("_list"):
            return request.check_list(self.receives, value, part)
        first, *others = part.shape or (1,)
        shape = (request.comm.world_size * first, *others)
        request.check_alike(self.receives, value, part.dtype, shape)
        return request.rows(self.receives, value)


def _exchange(
    comm: Communicator,
    kind: str,
    sent: list[Tensor],
    root: int,
    operation: str,
) -> list[Tensor]:
    """Send a rank's tensors, one or one for each rank; return what it receives."""
    if kind in ("all_gather", "gather"):
        return comm.all_gather(sent[0])
    if kind == "all_to_all":
        return comm.all_to_all(sent)
    if kind == "scatter":
        return [comm.all_to_all(sent)[root]]
    if kind == "broadcast":
        return [comm.broadcast(sent[0], root)]
    if kind == "reduce_scatter":
        rows = comm.all_to_all(sent)
    elif operation in BITWISE:
        rows = comm.all_gather(sent[0])
    else:
        rows = [comm.all_reduce(sent[0], _OPS[operation])]
    if operation in BITWISE:
        return [functools.reduce(BITWISE[operation], rows)]
    total = fold(rows, _OPS[operation])
    return [total / comm.world_size if operation == "AVG" else total]


def _all_to_all_single(request: Request) -> Finished | None:
    sizes: set[int] = set()
    for side in ("input", "output"):
        sizes.update(request.arguments[f"{side}_split_sizes"] or ())
        request.check_contiguous(side)
    if len(sizes) > 1:
        raise request.refusal("splits of different sizes are not supported in a world of threads")
    return Move("all_to_all", "input", "output")(request)


def _barrier(request: Request) -> Finished | None:
    with request.under_way():
        request.comm.barrier()
    return Finished() if request.arguments.get("async_op") else None


def _all_gather_object(request: Request) -> None:
    with request.under_way():
        objects = _gathered_objects(request.comm, request.arguments["obj"])
    request.arguments["object_list"][: len(objects)] = objects


def _gather_object(request: Request) -> None:
    root = request.root("dst", default=0)
    request.check_only_at(root, "dst", "object_gather_list")
    with request.under_way(None, request.name, root):
        objects = _gathered_objects(request.comm, request.arguments["obj"])
    if request.comm.rank == root:
        request.arguments["object_gather_list"][: len(objects)] = objects


def _broadcast_object_list(request: Request) -> None:
    objects = request.arguments["object_list"]
    root = request.root("src")
    with request.under_way(None, request.name, root, len(objects)):
        objects[:] = _object_of(root, request.comm, objects)


def _scatter_object_list(request: Request) -> None:
    comm, outputs = request.comm, request.arguments["scatter_object_output_list"]
    root = request.root("src", default=0)
    inputs = request.arguments["scatter_object_input_list"]
    if not isinstance(outputs, list) or not outputs:
        raise request.refusal("scatter_object_output_list must be a list with room for one object")
    if comm.rank == root and len(inputs or ()) != comm.world_size:
        raise request.refusal(
            f"scatter_object_input_list must hold one object for each of {comm.world_size} ranks"
        )
    with request.under_way(None, request.name, root):
        outputs[0] = _object_of(root, comm, inputs)[comm.rank]


def _object_of(root: int, comm: Communicator, own: Any) -> Any:
    """Return the root's object; it keeps its own one itself."""
    is_root = comm.rank == root
    received = _gathered_objects(comm, own if is_root else None)[root]
    return own if is_root else received


def _gathered_objects(comm: Communicator, obj: Any) -> list[Any]:
    """Return copies of all ranks' objects, sent as torch does it: sizes, then padded pickles."""
    data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    size = torch.tensor([len(data)])
    most = max(map(int, comm.all_gather(size)))
    padded = torch.nn.functional.pad(data, (0, most - len(data)))
    rows = comm.all_gather(padded)
    # A pickle ends itself: the padding is not read. The bytes are of threads of this process.
    return [pickle.loads(row.numpy().tobytes()) for row in rows]  # noqa: S301


ANSWERS: dict[str, Answer] = {
    "is_initialized": lambda _request: True,
    "get_rank": lambda request: request.comm.rank,
    "get_world_size": lambda request: request.comm.world_size,
    "get_backend": lambda _request: dist.Backend("gloo"),
    "get_process_group_ranks": lambda request: [*request.ranks],
    "get_global_rank": lambda request: request.ranks[request.arguments["group_rank"]],
    "get_group_rank": lambda request: request.ranks.index(request.arguments["global_rank"]),
    "new_group": groups.new_group,
    "new_subgroups": groups.new_subgroups,
    "new_subgroups_by_enumeration": groups.new_subgroups_by_enumeration,
    "barrier": _barrier,
    "monitored_barrier": _barrier,
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "broadcast_object_list": _broadcast_object_list,
    "scatter_object_list": _scatter_object_list,
    "all_gather": Move("all_gather", "tensor", "tensor_list"),
    "all_gather_into_tensor": Move("all_gather", "input_tensor", "output_tensor"),
    "all_gather_single": Move("all_gather", "input_tensor", "output_tensor"),
    "gather": Move("gather", "tensor", "gather_list"),
    "scatter": Move("scatter", "scatter_list", "tensor"),
    "broadcast": Move("broadcast", "tensor", "tensor"),
    "all_to_all": Move("all_to_all", "input_tensor_list", "output_tensor_list"),
    "all_to_all_single": _all_to_all_single,
    "all_reduce": Move("all_reduce", "tensor", "tensor"),
    "reduce": Move("reduce", "tensor", "tensor"),
    "reduce_scatter": Move("reduce_scatter", "input_list", "output"),
    "reduce_scatter_tensor": Move("reduce_scatter", "input", "output"),
    "reduce_scatter_single": Move("reduce_scatter", "input", "output"),
}
